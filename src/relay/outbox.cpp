// SPDX-License-Identifier: MIT
#include "relay/outbox.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/host_access.hpp"

namespace sluice::relay {

using protocol::CellKind;
using window::AnswerHead;
using window::RelayHead;
using window::RelayLayout;

bool Outbox::take() {
  // Looked at in the opposite order of their publishing: with answers there are their weights.
  const std::uint64_t answers = published(CellKind::combine);
  const std::uint64_t weights = published(CellKind::weights);
  bool any = take(CellKind::dispatch, published(CellKind::dispatch));
  any |= take(CellKind::weights, weights);
  any |= take(CellKind::combine, answers);
  return any;
}

std::uint64_t Outbox::published(CellKind kind) const noexcept {
  // Pairs with the release store in Relay::publish.
  return protocol::HostAccess::load_acquire(
      *site_.at<std::uint64_t>(site_.rank, site_.own().published(kind)));
}

bool Outbox::take(CellKind kind, std::uint64_t published) {
  std::uint64_t& taken = taken_[static_cast<std::size_t>(kind)];
  const bool any = taken < published;
  while (taken < published) {
    ++taken;
    if (kind == CellKind::combine) {
      post_answers(taken);
    } else {
      post_heads(taken, kind == CellKind::weights);
    }
  }
  return any;
}

void Outbox::post_heads(std::uint64_t epoch, bool weights) {
  const int nodes = site_.nodes.nodes();
  const int bank = site_.bank(epoch);
  const RelayLayout& own = site_.own();
  for (int step = 1; step < nodes; ++step) {
    const int node = (site_.own_node() + step) % nodes;
    const std::size_t offset = own.out_head(node, weights, bank);
    const auto& head = *site_.at<RelayHead>(site_.rank, offset);
    // Not for a node whose ranks are all given up, nor, weights, for a combine that was given none.
    if (head.epoch != epoch) continue;
    const int peer = site_.rail_peer(node);
    const RelayLayout& there = site_.layout(peer);
    const auto kind = weights ? protocol::Kind::combine : protocol::Kind::dispatch;
    postings_.begin(peer, there.head_slot(site_.rank, weights, bank), {kind, bank});
    postings_.add(
        kWindowRegion, offset, there.in_head(site_.rank, weights, bank),
        own.head_headers() + static_cast<std::size_t>(head.headers_sent) * own.header_bytes());
    postings_.end();
    if (head.row_bytes > 0) {
      post_rows(peer, head, reinterpret_cast<const std::byte*>(&head) + own.head_headers());
    }
  }
}

void Outbox::post_rows(int peer, const RelayHead& head, const std::byte* headers) {
  const RelayLayout& there = site_.layout(peer);
  const int bank = site_.bank(head.epoch);
  const int stage = there.dispatch_stage(head.epoch);
  const bool registered = (head.content.flags & protocol::cell_flags::kRegistered) != 0;
  const auto token_of = [&](int header) {
    std::int32_t token = 0;
    std::memcpy(&token, headers + static_cast<std::size_t>(header) * there.header_bytes(),
                sizeof(token));
    return token;
  };
  // Headers are ordered by token: runs of them are found in one pass.
  int header = 0;
  while (header < head.headers) {
    const int group = token_of(header) / there.group_rows();
    postings_.begin(peer, there.rows_slot(site_.rank, stage, group),
                    {protocol::Kind::dispatch, bank});
    while (header < head.headers && token_of(header) / there.group_rows() == group) {
      const int first = token_of(header);
      int rows = 1;
      while (header + rows < head.headers && token_of(header + rows) == first + rows &&
             (first + rows) / there.group_rows() == group) {
        ++rows;
      }
      postings_.add_rows(
          registered ? kHeapRegion : kWindowRegion,
          head.content.row_offset + static_cast<std::uint64_t>(first) * head.content.row_stride,
          head.content.row_stride, there.dispatch_row(site_.rank, stage, first),
          site_.window.dispatch_row_stride(), head.row_bytes, rows);
      header += rows;
    }
    postings_.end();
  }
}

void post_answer_rows(const Site& site, Postings& postings, int home, const AnswerHead& head,
                      int group, const std::uint32_t* masks, std::size_t rows) {
  const RelayLayout& there = site.layout(home);
  const std::size_t stride = site.window.combine_row_stride();
  const int end = std::min(head.slots, (group + 1) * there.group_rows());
  bool begun = false;
  for (int first = group * there.group_rows(); first < end;) {
    if (masks[first] == 0) {
      ++first;
      continue;
    }
    int after = first + 1;
    while (after < end && masks[after] != 0) ++after;
    if (!begun) {
      postings.begin(home, there.answer_rows_slot(site.rank, there.answer_stage(head.epoch), group),
                     {protocol::Kind::combine, site.bank(head.epoch)});
    }
    begun = true;
    postings.add_rows(kWindowRegion, rows + static_cast<std::size_t>(first) * stride, stride,
                      there.answer_landing(site.rank, head.epoch, first), stride, head.row_bytes,
                      after - first);
    first = after;
  }
  if (begun) postings.end();
}

void Outbox::post_answers(std::uint64_t epoch) {
  const int ranks = site_.nodes.ranks();
  for (int step = 1; step < ranks; ++step) {
    const int home = (site_.rank + step) % ranks;
    if (!site_.nodes.together(home, site_.rank)) post_answer(home, epoch);
  }
}

void Outbox::post_answer(int home, std::uint64_t epoch) {
  const int bank = site_.bank(epoch);
  const RelayLayout& own = site_.own();
  const RelayLayout& there = site_.layout(home);
  const std::size_t answer = own.answer(home, bank);
  const auto& head = *site_.at<AnswerHead>(site_.rank, answer);
  if (head.epoch != epoch || head.by_node != 0) return;
  const Postings::Account account{protocol::Kind::combine, bank};
  const auto& cell = *site_.at<protocol::Cell>(site_.rank, answer + own.answer_content());
  const auto slots = static_cast<std::size_t>(head.slots);

  postings_.begin(home, there.answer_slot(site_.rank, /*sums=*/false, bank), account);
  postings_.add(kWindowRegion, answer, there.answer_head(site_.rank, /*sums=*/false, bank),
                window::kAnswerHeadBytes + sizeof(protocol::Cell));
  postings_.add(kWindowRegion, answer + own.answer_masks(),
                site_.window.combine_mask(site_.rank, bank, 0), slots * sizeof(std::uint32_t));
  if ((cell.content.flags & protocol::cell_flags::kRowWeights) != 0) {
    // One line for each record; only rank_major has them, where records are slots.
    postings_.add(kWindowRegion, answer + own.answer_weights(),
                  site_.window.row_weights(site_.rank, bank, 0),
                  slots * static_cast<std::size_t>(site_.top_k) * sizeof(float));
  }
  postings_.end();

  const std::size_t rows = own.answer_row(home, own.answer_stage(epoch), 0);
  for (int group = 0; group * own.group_rows() < head.slots; ++group) {
    post_answer_rows(site_, postings_, home, head, group,
                     site_.at<std::uint32_t>(site_.rank, answer + own.answer_masks()), rows);
  }
}

}  // namespace sluice::relay
