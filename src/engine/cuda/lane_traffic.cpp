// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_traffic.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::engine::cuda {

using protocol::CellKind;
using protocol::HostAccess;
using protocol::Kind;
using window::kPacketBytes;
using What = window::RelaySlot::What;

LaneTraffic::LaneTraffic(const relay::Site& site, relay::Postings& postings,
                         std::shared_ptr<FerryPort> port)
    : site_(site),
      postings_(postings),
      port_(std::move(port)),
      view_(*port_),
      out_(site, postings, view_),
      ferry_(*port_),
      sums_(site, view_, out_, ferry_),
      receipts_(site, postings, view_, ferry_),
      arrivals_(site.own().slots()),
      dispatches_(at(site.nodes.ranks()) * at(view_.layout().shape().banks)),
      combines_(dispatches_.size()) {
  const int banks = view_.layout().shape().banks;
  for (std::size_t i = 0; i < dispatches_.size(); ++i) {
    dispatches_[i].epoch = combines_[i].epoch = 1 + i % at(banks);
    dispatches_[i].groups.resize(at(site.own().groups(view_.tokens())));
    combines_[i].groups.resize(at(site.own().groups(view_.slots())));
  }
}

LaneTraffic::~LaneTraffic() = default;

bool LaneTraffic::step() {
  // Before what was published: then that was all. Pairs with the release store in ~Relay.
  const bool closed = HostAccess::load_acquire(
                          *site_.at<const std::uint64_t>(site_.rank, site_.own().closed())) != 0;
  // Looked at in the opposite order of their publishing: with answers there are their weights, in latency mode.
  const std::uint64_t answers = published(CellKind::combine);
  const std::uint64_t weights = published(CellKind::weights);
  const std::uint64_t dispatches = published(CellKind::dispatch);
  // Made before what they make room for was published: they go first.
  if (view_.throughput() && note_accusations()) return true;
  bool any =
      take(CellKind::dispatch, dispatches, [&](std::uint64_t epoch) { out_.dispatch(epoch); });
  any |= take(CellKind::weights, weights, [&](std::uint64_t epoch) { out_.weights(epoch); });
  any |= take(CellKind::combine, answers, [&](std::uint64_t epoch) {
    const std::uint32_t later = sums_.publish(epoch);
    out_.answers(epoch, later);
  });
  if (closed) sums_.close();
  any |= sums_.step();
  any |= receipts_.step({posted(Kind::dispatch), posted(Kind::combine)});
  ferry_.expect(is_under_way(Kind::dispatch) || is_under_way(Kind::combine));
  any |= ferry_.step();
  any |= say_heard();
  return any;
}

// Whether anything of this rank's operations is still to come.
bool LaneTraffic::is_under_way(Kind kind) const noexcept {
  const CellKind cells = kind == Kind::dispatch ? CellKind::dispatch : CellKind::combine;
  return receipts_.carried(kind) < taken_[static_cast<std::size_t>(cells)];
}

// Whom this rank's kernels have given up: of throughput mode, whose rows others of its node read where they have landed.
bool LaneTraffic::note_accusations() {
  bool any = false;
  const window::FarLanes& own = view_.lanes(site_.rank);
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank)) continue;
    // Pairs with accuse() of the kernels.
    const std::uint64_t accused =
        HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(view_.host(
            own.out(peer) + view_.layout().told(Kind::dispatch) + view_.layout().accusation())));
    // Pairs with the load in Presence::tell_accusations.
    auto& word = *site_.at<std::uint64_t>(site_.rank, site_.own().accusation(peer));
    if (accused != 1 || HostAccess::load_acquire(word) != 0) continue;
    protocol::accuse<HostAccess>(word);
    any = true;
  }
  return any;
}

bool LaneTraffic::accused(int source, int reader) {
  if (!view_.throughput()) return true;
  ferry_.accuse(view_.layout().told(Kind::dispatch) + view_.layout().accusation(),
                static_cast<std::uint16_t>(1U << reader), source);
  unheard_.push_back({source, ferry_.added()});
  return false;
}

// Once the accusations are in the lanes of those who are accused.
bool LaneTraffic::say_heard() {
  bool any = false;
  for (; !unheard_.empty() && unheard_.front().items <= ferry_.carried(); unheard_.pop_front()) {
    postings_.sign(unheard_.front().source, window::Sign::heard);
    any = true;
  }
  return any;
}

// Up to which epoch. No block says anything of one before all have of the one before it.
std::uint64_t LaneTraffic::published(CellKind kind) const noexcept {
  const auto word = [&](int block) {
    // Pairs with publish() and count_sent() of the kernels.
    return HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(
        view_.host(PublishedWords::at(static_cast<int>(kind), block))));
  };
  const std::uint64_t first = word(0);
  const std::uint64_t epoch = PublishedWords::epoch(first);
  if (epoch == taken_[static_cast<std::size_t>(kind)]) return epoch;
  for (int block = 1; block < PublishedWords::blocks(first); ++block) {
    if (PublishedWords::epoch(word(block)) < epoch) return epoch - 1;
  }
  return epoch;
}

template <typename Post>
bool LaneTraffic::take(CellKind kind, std::uint64_t published, Post post) {
  std::uint64_t& taken = taken_[static_cast<std::size_t>(kind)];
  const bool any = taken < published;
  while (taken < published) post(++taken);
  return any;
}

void LaneTraffic::chunk(std::uint32_t immediate) {
  const std::optional<int> complete = arrivals_.note(immediate);
  if (!complete) return;
  arrivals_.take(*complete);
  const window::RelaySlot slot = site_.own().slot(*complete);
  const int banks = view_.layout().shape().banks;
  switch (slot.what) {
    case What::head:
      if (slot.index < banks) {
        take_dispatch_head(slot.source, slot.index);
      } else {
        take_weights(slot.source, slot.index - banks);
      }
      break;
    case What::rows: take_dispatch_rows(slot.source, slot.stage, slot.group); break;
    case What::answer: take_answer(slot.source, slot.index); break;
    case What::answer_rows: take_answer_rows(slot.source, slot.stage, slot.group); break;
    case What::sums: take_sums(slot.source, slot.index); break;
    case What::sign: break;
  }
}

// Where the head of a served source's lane at a rank of this node has landed.
std::size_t LaneTraffic::heads(int source, int rank) const noexcept {
  const window::FarLanes& own = view_.lanes(site_.rank);
  return rank == site_.rank ? own.in(source) : own.through(source, site_.nodes.place_of(rank));
}

void LaneTraffic::take_dispatch_head(int source, int bank) {
  const window::PacketLayout& layout = view_.layout();
  Arrival& arrival = dispatches_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t cell = layout.cell(CellKind::dispatch, bank);
  bool rows = false;
  for (const int rank : site_.neighbours()) {
    const std::size_t from = heads(source, rank);
    if (!view_.has_cell(from, CellKind::dispatch, arrival.epoch)) continue;  // Given up there.
    const auto mask = static_cast<std::uint16_t>(1U << rank);
    const auto pass_on = [&](std::size_t offset, std::size_t bytes) {
      ferry_.carry(from + offset, offset, bytes, mask, source);
    };
    pass_on(cell, layout.cell_bytes());
    pass_on(layout.count(bank, 0), at(layout.shape().local_experts) * sizeof(std::uint64_t));
    const std::size_t stride = layout.route(bank, 1, 0) - layout.route(bank, 0, 0);
    const LaneView::Range routes = view_.routes(from, arrival.epoch);
    if (!routes.empty()) {
      pass_on(layout.route(bank, routes.begin, 0), at(routes.end - routes.begin) * stride);
    }
    rows = rows || view_.record_bytes(from, CellKind::dispatch, bank) != 0;
  }
  arrival.head = true;
  for (int group = 0; rows && group < site_.own().groups(view_.tokens()); ++group) {
    const int end = std::min(view_.tokens(), (group + 1) * site_.own().group_rows());
    bool awaited = false;
    for (int token = group * site_.own().group_rows(); token < end && !awaited; ++token) {
      awaited = row_ranks(source, bank, token) != 0;
    }
    if (!awaited) continue;
    if (arrival.groups[at(group)] != 0) {
      carry_rows(source, bank, group);
    } else {
      ++arrival.groups_missing;
    }
  }
  if (arrival.groups_missing == 0) end(arrival, source, Kind::dispatch);
}

// The ranks of this node that a token of a served source goes to.
std::uint16_t LaneTraffic::row_ranks(int source, int bank, int token) const noexcept {
  const Arrival& arrival = dispatches_[at(source) * at(view_.layout().shape().banks) + at(bank)];
  std::uint32_t ranks = 0;
  for (const int rank : site_.neighbours()) {
    const std::size_t from = heads(source, rank);
    if (!view_.has_cell(from, CellKind::dispatch, arrival.epoch)) continue;
    if (view_.comes(from, view_.lanes(site_.rank).landed_targets(source, bank), rank, bank,
                    token)) {
      ranks |= 1U << rank;
    }
  }
  return static_cast<std::uint16_t>(ranks);
}

void LaneTraffic::take_dispatch_rows(int source, int bank, int group) {
  Arrival& arrival = dispatches_[at(source) * at(view_.layout().shape().banks) + at(bank)];
  arrival.groups[at(group)] = 1;
  if (!arrival.head) return;
  carry_rows(source, bank, group);
  if (--arrival.groups_missing == 0) end(arrival, source, Kind::dispatch);
}

void LaneTraffic::carry_rows(int source, int bank, int group) {
  const window::PacketLayout& layout = view_.layout();
  const std::uint32_t tag =
      window::tag_of(dispatches_[at(source) * at(layout.shape().banks) + at(bank)].epoch);
  const int end = std::min(view_.tokens(), (group + 1) * site_.own().group_rows());
  for (int token = group * site_.own().group_rows(); token < end;) {
    const std::uint16_t ranks = row_ranks(source, bank, token);
    if (ranks == 0) {
      ++token;
      continue;
    }
    const int reader = std::countr_zero(ranks);
    const std::size_t bytes = view_.record_bytes(heads(source, reader), CellKind::dispatch, bank);
    if (view_.throughput()) {
      ferry_.carry_row({source, bank, token}, tag, bytes / kPacketBytes, ranks);
      ++token;
      continue;
    }
    // Those that follow each other, for the same ranks, in one go, as they lie alike on both sides: with what lies between
    // them, in which no call has packets if this one's are as long as any.
    int after = token + 1;
    if (bytes >= layout.shape().dispatch_row_bytes) {
      while (after < end && row_ranks(source, bank, after) == ranks) ++after;
    }
    ferry_.carry_packets_of_rows(
        view_.row_from(site_.rank, source, bank, token), layout.dispatch_row(bank, token),
        at(after - token - 1) * layout.staged_row_stride() + bytes, ranks, source);
    token = after;
  }
}

void LaneTraffic::take_weights(int source, int bank) {
  const window::PacketLayout& layout = view_.layout();
  Arrival& arrival = combines_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t in = view_.lanes(site_.rank).in(source);
  // Before any answer: who waits for weights looks at the cell.
  const std::size_t cell = layout.cell(CellKind::combine, bank);
  ferry_.carry(in + cell, cell, layout.cell_bytes(), static_cast<std::uint16_t>(1U << site_.rank),
               source);
  const LaneView::Range weights =
      view_.tagged(in + layout.weight(bank, 0), layout.weight_bytes(), arrival.epoch);
  if (!weights.empty()) {
    const std::size_t offset = layout.weight(bank, weights.begin);
    ferry_.carry(in + offset, offset, at(weights.end - weights.begin) * layout.weight_bytes(),
                 static_cast<std::uint16_t>(1U << site_.rank), source);
  }
  arrival.weights = true;
  end_answer(arrival, source, bank);
}

void LaneTraffic::take_answer(int source, int bank) {
  const window::PacketLayout& layout = view_.layout();
  Arrival& arrival = combines_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t in = view_.lanes(site_.rank).in(source);
  const auto own = static_cast<std::uint16_t>(1U << site_.rank);
  const auto pass_on = [&](std::size_t offset, std::size_t bytes) {
    ferry_.carry(in + offset, offset, bytes, own, source);
  };
  pass_on(layout.cell(CellKind::combine, bank), layout.cell_bytes());
  arrival.head = true;
  if (view_.by_node(in, bank)) {
    if (arrival.sums) take_answers(arrival, source, bank);
    return end_answer(arrival, source, bank);
  }
  if (!view_.throughput()) {
    const LaneView::Range answers =
        view_.tagged(in + layout.answer(bank, 0), kPacketBytes, arrival.epoch);
    if (!answers.empty()) {
      pass_on(layout.answer(bank, answers.begin), at(answers.end - answers.begin) * kPacketBytes);
    }
    const LaneView::Range weights =
        view_.tagged(in + layout.row_weight(bank, 0), layout.weight_bytes(), arrival.epoch);
    if (!weights.empty()) {
      pass_on(layout.row_weight(bank, weights.begin),
              at(weights.end - weights.begin) * layout.weight_bytes());
    }
  }
  take_answers(arrival, source, bank);
  end_answer(arrival, source, bank);
}

// Which may come before the cell that says what they are.
void LaneTraffic::take_sums(int source, int bank) {
  Arrival& arrival = combines_[at(source) * at(view_.layout().shape().banks) + at(bank)];
  arrival.sums = true;
  if (!arrival.head) return;
  take_answers(arrival, source, bank);
  end_answer(arrival, source, bank);
}

// Whether its cell, which has come, says that sums of its node come with it.
bool LaneTraffic::brings_sums(int source, int bank) const noexcept {
  return site_.rail_peer(site_.nodes.node_of(source)) == source &&
         view_.by_node(view_.lanes(site_.rank).in(source), bank);
}

// What comes in groups, and what has come of it before.
void LaneTraffic::take_answers(Arrival& arrival, int source, int bank) {
  const std::size_t in = view_.lanes(site_.rank).in(source);
  if (view_.throughput() || arrival.sums) carry_answers_without_rows(source, arrival, bank);
  for (int group = 0; group < site_.own().groups(view_.slots()); ++group) {
    const int end = std::min(view_.slots(), (group + 1) * site_.own().group_rows());
    bool awaited = false;
    for (int slot = group * site_.own().group_rows(); slot < end && !awaited; ++slot) {
      awaited = view_.has_row(in, arrival.epoch, slot);
    }
    if (!awaited) continue;
    if (arrival.groups[at(group)] != 0) {
      carry_answer_rows(source, arrival, bank, group);
    } else {
      ++arrival.groups_missing;
    }
  }
}

void LaneTraffic::take_answer_rows(int source, int bank, int group) {
  Arrival& arrival = combines_[at(source) * at(view_.layout().shape().banks) + at(bank)];
  arrival.groups[at(group)] = 1;
  if (!arrival.head || (brings_sums(source, bank) && !arrival.sums)) return;
  carry_answer_rows(source, arrival, bank, group);
  --arrival.groups_missing;
  end_answer(arrival, source, bank);
}

void LaneTraffic::carry_answer_rows(int source, const Arrival& arrival, int bank, int group) {
  const window::PacketLayout& layout = view_.layout();
  const std::size_t in = view_.lanes(site_.rank).in(source);
  const int end = std::min(view_.slots(), (group + 1) * site_.own().group_rows());
  if (view_.throughput() || arrival.sums) {
    const int each = layout.shape().combine_rows_per_token;
    for (int token = group * site_.own().group_rows() / each; token * each < end; ++token) {
      // A sum has one row, and is carried once: whoever takes it leaves a mark there.
      if (arrival.sums && token * each < group * site_.own().group_rows()) continue;
      if (has_come(in, arrival, token)) carry_answer(source, bank, token, true);
    }
    return;
  }
  const std::size_t bytes = view_.record_bytes(in, CellKind::combine, bank);
  for (int slot = group * site_.own().group_rows(); slot < end;) {
    if (!view_.has_row(in, arrival.epoch, slot)) {
      ++slot;
      continue;
    }
    // As rows of a dispatch.
    int after = slot + 1;
    if (bytes >= layout.shape().combine_row_bytes) {
      while (after < end && view_.has_row(in, arrival.epoch, after)) ++after;
    }
    const std::size_t offset = layout.combine_row(bank, slot);
    ferry_.carry_packets_of_rows(view_.lanes(site_.rank).in_row(source, offset), offset,
                                 at(after - slot - 1) * layout.combine_row_stride() + bytes,
                                 static_cast<std::uint16_t>(1U << site_.rank), source);
    slot = after;
  }
}

// In throughput mode, and of sums, an answer comes last of what belongs to it.
void LaneTraffic::carry_answer(int source, int bank, int token, bool rows) {
  const std::size_t in = view_.lanes(site_.rank).in(source);
  const std::size_t packets =
      rows ? view_.record_bytes(in, CellKind::combine, bank) / kPacketBytes : 0;
  if (view_.by_node(in, bank)) return ferry_.carry_sum_answer({source, bank, token}, packets);
  ferry_.carry_answer({source, bank, token}, packets, view_.row_per_route(in, bank));
}

void LaneTraffic::carry_answers_without_rows(int source, const Arrival& arrival, int bank) {
  const std::size_t in = view_.lanes(site_.rank).in(source);
  for (int token = 0; token < view_.tokens(); ++token) {
    const LaneView::Packet answer = view_.packet(in + view_.layout().answer(bank, token));
    if (answer[0] == window::tag_of(arrival.epoch) && answer[3] == 0) {
      carry_answer(source, bank, token, false);
    }
  }
}

// Whether a token has rows, and all of them have come. They may be in two groups, and are then carried by whichever comes last;
// or, if the answers come last, twice: with the same bytes, before anybody is told that all were read.
bool LaneTraffic::has_come(std::size_t in, const Arrival& arrival, int token) const noexcept {
  const int each = view_.layout().shape().combine_rows_per_token;
  bool any = false;
  for (int slot = token * each; slot < (token + 1) * each; ++slot) {
    if (!view_.has_row(in, arrival.epoch, slot)) continue;
    if (arrival.groups[at(slot / site_.own().group_rows())] == 0) return false;
    any = true;
  }
  return any;
}

// Weights may come after the answers, which say whether any do.
void LaneTraffic::end_answer(Arrival& arrival, int source, int bank) {
  if (!arrival.head || arrival.groups_missing != 0) return;
  if (brings_sums(source, bank) && !arrival.sums) return;
  const std::size_t in = view_.lanes(site_.rank).in(source);
  if (!view_.weights_before(in, bank) || arrival.weights) end(arrival, source, Kind::combine);
}

void LaneTraffic::end(Arrival& arrival, int source, Kind kind) {
  receipts_.end({source, kind, arrival.epoch, ferry_.added(), arrival.sums});
  arrival.epoch += at(view_.layout().shape().banks);
  arrival.head = arrival.sums = arrival.weights = false;
  arrival.groups_missing = 0;
  std::fill(arrival.groups.begin(), arrival.groups.end(), std::uint8_t{0});
}

}  // namespace sluice::engine::cuda
