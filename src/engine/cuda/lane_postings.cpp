// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_postings.hpp"

#include <algorithm>

namespace sluice::engine::cuda {

using protocol::CellKind;
using protocol::Kind;
using relay::kHeapRegion;
using relay::kRowsRegion;
using window::kPacketBytes;

void LanePostings::dispatch(std::uint64_t epoch) {
  const int nodes = site_.nodes.nodes();
  for (int step = 1; step < nodes; ++step) {
    const int node = (site_.own_node() + step) % nodes;
    std::fill(ranks_.begin(), ranks_.end(), std::uint16_t{0});
    const std::size_t row_bytes = post_head(node, epoch);
    if (row_bytes > 0) post_rows(site_.rail_peer(node), epoch, row_bytes);
  }
}

// Bytes of the rows that follow, of tokens with ranks; 0: none do.
std::size_t LanePostings::post_head(int node, std::uint64_t epoch) {
  const window::PacketLayout& layout = view_.layout();
  const int peer = site_.rail_peer(node);
  const int bank = view_.bank(epoch);
  const window::FarLanes& own = view_.lanes(site_.rank);
  const window::FarLanes& there = view_.lanes(peer);
  bool begun = false;
  std::size_t row_bytes = 0;
  for (const int rank : site_.nodes.ranks_of(node)) {
    const std::size_t from = own.out(rank);
    const std::size_t to =
        rank == peer ? there.in(site_.rank) : there.through(site_.rank, site_.nodes.place_of(rank));
    const std::size_t cell = layout.cell(CellKind::dispatch, bank);
    // Given up: it gets nothing, or not all.
    if (!view_.has_cell(from, CellKind::dispatch, epoch) || view_.suspects(rank)) continue;
    if (!begun) {
      postings_.begin(peer, site_.layout(peer).head_slot(site_.rank, /*weights=*/false, bank),
                      {Kind::dispatch, site_.bank(epoch)}, kHeapRegion);
    }
    begun = true;
    const auto put = [&](std::size_t offset, std::size_t bytes) {
      postings_.add(kHeapRegion, from + offset, to + offset, bytes);
    };
    put(cell, layout.cell_bytes());
    put(layout.count(bank, 0), at(layout.shape().local_experts) * sizeof(std::uint64_t));
    row_bytes = std::max(row_bytes, view_.record_bytes(from, CellKind::dispatch, bank));
    for (int token = 0; token < view_.tokens(); ++token) {
      if (!view_.comes(from, own.targets(bank), rank, bank, token)) continue;
      ranks_[at(token)] |= static_cast<std::uint16_t>(1U << rank);
    }
    // A cached dispatch has none.
    const std::size_t stride = layout.route(bank, 1, 0) - layout.route(bank, 0, 0);
    const LaneView::Range routes = view_.routes(from, epoch);
    if (!routes.empty()) {
      put(layout.route(bank, routes.begin, 0), at(routes.end - routes.begin) * stride);
    }
  }
  if (row_bytes > 0 && view_.throughput()) {
    postings_.add(kHeapRegion, own.targets(bank), there.landed_targets(site_.rank, bank),
                  at(view_.tokens()) * sizeof(std::uint32_t));
  }
  if (begun) postings_.end();
  return row_bytes;
}

void LanePostings::post_rows(int peer, std::uint64_t epoch, std::size_t row_bytes) {
  const window::PacketLayout& layout = view_.layout();
  const window::RelayLayout& there = site_.layout(peer);
  const int bank = view_.bank(epoch);
  for (int group = 0; group * there.group_rows() < view_.tokens(); ++group) {
    const int end = std::min(view_.tokens(), (group + 1) * there.group_rows());
    bool begun = false;
    for (int first = group * there.group_rows(); first < end;) {
      if (ranks_[at(first)] == 0) {
        ++first;
        continue;
      }
      int after = first + 1;
      while (after < end && ranks_[at(after)] != 0) ++after;
      if (!begun) {
        postings_.begin(peer, there.rows_slot(site_.rank, bank, group),
                        {Kind::dispatch, site_.bank(epoch)}, kRowsRegion);
      }
      begun = true;
      const std::size_t stride = layout.staged_row_stride();
      postings_.add_rows(kRowsRegion, view_.row_to(site_.rank, peer, bank, first), stride,
                         view_.row_from(peer, site_.rank, bank, first), stride, row_bytes,
                         after - first);
      first = after;
    }
    if (begun) postings_.end();
  }
}

void LanePostings::weights(std::uint64_t epoch) {
  const window::PacketLayout& layout = view_.layout();
  const int bank = view_.bank(epoch);
  for (int step = 1; step < site_.nodes.ranks(); ++step) {
    const int rank = (site_.rank + step) % site_.nodes.ranks();
    if (site_.nodes.together(rank, site_.rank)) continue;
    const std::size_t from = view_.lanes(site_.rank).out(rank);
    const std::size_t to = view_.lanes(rank).in(site_.rank);
    const std::size_t cell = layout.cell(CellKind::combine, bank);
    if (!view_.has_cell(from, CellKind::combine, epoch) || view_.suspects(rank)) continue;
    if (!view_.weights_before(from, bank)) continue;  // None of this epoch.
    postings_.begin(rank, site_.layout(rank).head_slot(site_.rank, /*weights=*/true, bank),
                    {Kind::combine, site_.bank(epoch)}, kHeapRegion);
    postings_.add(kHeapRegion, from + cell, to + cell, layout.cell_bytes());
    const LaneView::Range weights =
        view_.tagged(from + layout.weight(bank, 0), layout.weight_bytes(), epoch);
    if (!weights.empty()) {
      const std::size_t offset = layout.weight(bank, weights.begin);
      postings_.add(kHeapRegion, from + offset, to + offset,
                    at(weights.end - weights.begin) * layout.weight_bytes());
    }
    postings_.end();
  }
}

void LanePostings::answers(std::uint64_t epoch, std::uint32_t later) {
  for (int step = 1; step < site_.nodes.ranks(); ++step) {
    const int home = (site_.rank + step) % site_.nodes.ranks();
    if (site_.nodes.together(home, site_.rank) || ((later >> home) & 1U) != 0) continue;
    answer(home, epoch);
  }
}

void LanePostings::answer(int home, std::uint64_t epoch) {
  const window::PacketLayout& layout = view_.layout();
  const int bank = view_.bank(epoch);
  const std::size_t from = view_.lanes(site_.rank).out(home);
  const std::size_t to = view_.lanes(home).in(site_.rank);
  const std::size_t cell = layout.cell(CellKind::combine, bank);
  // Given up: it gets nothing, or not all.
  if (!view_.has_cell(from, CellKind::combine, epoch) || view_.suspects(home)) return;
  const bool alone = !view_.by_node(from, bank);
  postings_.begin(home, site_.layout(home).answer_slot(site_.rank, /*sums=*/false, bank),
                  {Kind::combine, site_.bank(epoch)}, kHeapRegion);
  postings_.add(kHeapRegion, from + cell, to + cell, layout.cell_bytes());
  if (alone) add_answers(from, to, epoch);
  postings_.end();
  if (alone) post_answer_rows(home, epoch);
}

void LanePostings::sums(int home, std::uint64_t epoch, int tokens) {
  const int bank = view_.bank(epoch);
  const std::size_t from = view_.lanes(site_.rank).out(home);
  const std::size_t to = view_.lanes(home).in(site_.rank);
  if (view_.suspects(home)) return;
  postings_.begin(home, site_.layout(home).answer_slot(site_.rank, /*sums=*/true, bank),
                  {Kind::combine, site_.bank(epoch)}, kHeapRegion);
  if (tokens == 0 || !add_answers(from, to, epoch)) {
    // A message needs something: of another epoch, if there are no answers.
    const std::size_t first = view_.layout().answer(bank, 0);
    postings_.add(kHeapRegion, from + first, to + first, kPacketBytes);
    tokens = 0;
  }
  postings_.end();
  if (tokens != 0) post_answer_rows(home, epoch);
}

// Whether there were any.
bool LanePostings::add_answers(std::size_t from, std::size_t to, std::uint64_t epoch) {
  const window::PacketLayout& layout = view_.layout();
  const int bank = view_.bank(epoch);
  const auto put = [&](std::size_t offset, std::size_t bytes) {
    postings_.add(kHeapRegion, from + offset, to + offset, bytes);
  };
  const LaneView::Range answers = view_.tagged(from + layout.answer(bank, 0), kPacketBytes, epoch);
  if (!answers.empty()) {
    put(layout.answer(bank, answers.begin), at(answers.end - answers.begin) * kPacketBytes);
  }
  const LaneView::Range weights =
      view_.tagged(from + layout.row_weight(bank, 0), layout.weight_bytes(), epoch);
  if (!weights.empty()) {
    put(layout.row_weight(bank, weights.begin),
        at(weights.end - weights.begin) * layout.weight_bytes());
  }
  return !answers.empty();
}

void LanePostings::post_answer_rows(int home, std::uint64_t epoch) {
  const window::PacketLayout& layout = view_.layout();
  const window::RelayLayout& there = site_.layout(home);
  const int bank = view_.bank(epoch);
  const relay::Postings::Account account{Kind::combine, site_.bank(epoch)};
  const std::size_t from = view_.lanes(site_.rank).out(home);
  for (int group = 0; group * there.group_rows() < view_.slots(); ++group) {
    const int end = std::min(view_.slots(), (group + 1) * there.group_rows());
    bool begun = false;
    for (int first = group * there.group_rows(); first < end;) {
      if (!view_.has_row(from, epoch, first)) {
        ++first;
        continue;
      }
      int after = first + 1;
      while (after < end && view_.has_row(from, epoch, after)) ++after;
      if (!begun) {
        postings_.begin(home, there.answer_rows_slot(site_.rank, bank, group), account,
                        kRowsRegion);
      }
      begun = true;
      const std::size_t stride = layout.combine_row_stride();
      const std::size_t offset = layout.combine_row(bank, first);
      postings_.add_rows(kRowsRegion, view_.lanes(site_.rank).out_row(home, offset), stride,
                         view_.lanes(home).in_row(site_.rank, offset), stride,
                         view_.record_bytes(from, CellKind::combine, bank), after - first);
      first = after;
    }
    if (begun) postings_.end();
  }
}

}  // namespace sluice::engine::cuda
