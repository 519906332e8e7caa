// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_traffic.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::engine::cuda {

using protocol::CellKind;
using protocol::HostAccess;
using protocol::Kind;
using relay::kHeapRegion;
using window::kPacketBytes;
using What = window::RelaySlot::What;

LaneTraffic::LaneTraffic(const relay::Site& site, relay::Postings& postings,
                         std::shared_ptr<FerryPort> port)
    : site_(site),
      postings_(postings),
      port_(std::move(port)),
      ferry_(*port_),
      arrivals_(site.own().slots()),
      tokens_(port_->layout.shape().tokens),
      slots_(tokens_ * port_->layout.shape().combine_rows_per_token),
      dispatches_(at(site.nodes.ranks()) * at(port_->layout.shape().banks)),
      combines_(dispatches_.size()),
      ended_(at(site.nodes.ranks())),
      complete_(at(site.nodes.ranks())),
      told_(at(site.nodes.ranks())) {
  const int banks = port_->layout.shape().banks;
  for (std::size_t i = 0; i < dispatches_.size(); ++i) {
    dispatches_[i].epoch = combines_[i].epoch = 1 + i % at(banks);
    dispatches_[i].groups.resize(at(site.own().groups(tokens_)));
    combines_[i].groups.resize(at(site.own().groups(slots_)));
  }
}

LaneTraffic::~LaneTraffic() = default;

bool LaneTraffic::step() {
  // Looked at in the opposite order of their publishing: with answers there are their weights.
  const std::uint64_t answers = published(CellKind::combine);
  const std::uint64_t weights = published(CellKind::weights);
  bool any = take(CellKind::dispatch, published(CellKind::dispatch),
                  [&](std::uint64_t epoch) { post_dispatch(epoch); });
  any |= take(CellKind::weights, weights, [&](std::uint64_t epoch) { post_weights(epoch); });
  any |= take(CellKind::combine, answers, [&](std::uint64_t epoch) { post_answers(epoch); });
  any |= tell();
  any |= ferry_.step();
  return any;
}

std::uint64_t LaneTraffic::published(CellKind kind) const noexcept {
  // Pairs with publish() of the kernels.
  return HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(
      host(at(static_cast<int>(kind)) * window::kLineBytes)));
}

template <typename Post>
bool LaneTraffic::take(CellKind kind, std::uint64_t published, Post post) {
  std::uint64_t& taken = taken_[static_cast<std::size_t>(kind)];
  const bool any = taken < published;
  while (taken < published) post(++taken);
  return any;
}

LaneTraffic::Packet LaneTraffic::packet(std::size_t offset) const noexcept {
  Packet packet;
  std::memcpy(packet.data(), host(offset), kPacketBytes);
  return packet;
}

bool LaneTraffic::comes(std::size_t lane, int bank, int token) const noexcept {
  const Packet bits = packet(lane + port_->layout.cell(CellKind::dispatch, bank) +
                             at(window::bit_packet(token)) * kPacketBytes);
  if (token < window::kFirstTokens) return ((bits[3] >> token) & 1U) != 0;
  const int bit = (token - window::kFirstTokens) % window::kPacketTokens;
  return ((bits[at(1 + bit / 32)] >> (bit % 32)) & 1U) != 0;
}

LaneTraffic::Range LaneTraffic::tagged(std::size_t offset, std::size_t stride,
                                       std::uint64_t epoch) const noexcept {
  Range range;
  for (int token = 0; token < tokens_; ++token) {
    if (packet(offset + at(token) * stride)[0] != window::tag_of(epoch)) continue;
    if (range.end == 0) range.begin = token;
    range.end = token + 1;
  }
  return range;
}

/// Of the records that a cell announces.
std::size_t LaneTraffic::record_bytes(std::size_t lane, CellKind kind, int bank) const noexcept {
  const Packet form =
      packet(lane + port_->layout.cell(kind, bank) + window::kFormPacket * kPacketBytes);
  return at(static_cast<int>(form[1] & ~window::kFormFlags)) * kPacketBytes;
}

/// Whether a combine's cell says that weights come in a message before the answers.
bool LaneTraffic::weights_before(std::size_t lane, int bank) const noexcept {
  const Packet form = packet(lane + port_->layout.cell(CellKind::combine, bank) +
                             window::kFormPacket * kPacketBytes);
  return (form[1] & window::kWeightsBefore) != 0;
}

void LaneTraffic::post_dispatch(std::uint64_t epoch) {
  const int nodes = site_.nodes.nodes();
  std::vector<std::uint16_t> ranks(at(tokens_));
  for (int step = 1; step < nodes; ++step) {
    const int node = (site_.own_node() + step) % nodes;
    std::fill(ranks.begin(), ranks.end(), std::uint16_t{0});
    const std::size_t row_bytes = post_dispatch_head(node, epoch, ranks);
    if (row_bytes > 0) post_rows(site_.rail_peer(node), epoch, ranks, row_bytes);
  }
}

// Bytes of the rows that follow, of tokens with ranks; 0: none do.
std::size_t LaneTraffic::post_dispatch_head(int node, std::uint64_t epoch,
                                            std::vector<std::uint16_t>& ranks) {
  const window::PacketLayout& layout = port_->layout;
  const int peer = site_.rail_peer(node);
  const int bank = this->bank(epoch);
  const window::HostLanes& own = port_->lanes[at(site_.rank)];
  const window::HostLanes& there = port_->lanes[at(peer)];
  bool begun = false;
  std::size_t row_bytes = 0;
  for (const int rank : site_.nodes.ranks_of(node)) {
    const std::size_t from = own.out(rank);
    const std::size_t to =
        rank == peer ? there.in(site_.rank) : there.heads(site_.rank, site_.nodes.place_of(rank));
    const std::size_t cell = layout.cell(CellKind::dispatch, bank);
    if (packet(from + cell)[0] != window::tag_of(epoch)) continue;  // Given up.
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
    row_bytes = std::max(row_bytes, record_bytes(from, CellKind::dispatch, bank));
    for (int token = 0; token < tokens_; ++token) {
      if (comes(from, bank, token)) ranks[at(token)] |= static_cast<std::uint16_t>(1U << rank);
    }
    // A cached dispatch has none.
    const std::size_t stride = layout.route(bank, 1, 0) - layout.route(bank, 0, 0);
    const Range routes = tagged(from + layout.route(bank, 0, 0), stride, epoch);
    if (!routes.empty()) {
      put(layout.route(bank, routes.begin, 0), at(routes.end - routes.begin) * stride);
    }
  }
  if (begun) postings_.end();
  return row_bytes;
}

void LaneTraffic::post_rows(int peer, std::uint64_t epoch, const std::vector<std::uint16_t>& ranks,
                            std::size_t row_bytes) {
  const window::PacketLayout& layout = port_->layout;
  const window::RelayLayout& there = site_.layout(peer);
  const int bank = this->bank(epoch);
  const std::size_t from = port_->lanes[at(site_.rank)].out(peer);
  const std::size_t to = port_->lanes[at(peer)].in(site_.rank);
  for (int group = 0; group * there.group_rows() < tokens_; ++group) {
    const int end = std::min(tokens_, (group + 1) * there.group_rows());
    bool begun = false;
    for (int first = group * there.group_rows(); first < end;) {
      if (ranks[at(first)] == 0) {
        ++first;
        continue;
      }
      int after = first + 1;
      while (after < end && ranks[at(after)] != 0) ++after;
      if (!begun) {
        postings_.begin(peer, there.rows_slot(site_.rank, bank, group),
                        {Kind::dispatch, site_.bank(epoch)}, kHeapRegion);
      }
      begun = true;
      const std::size_t stride = layout.staged_row_stride();
      const std::size_t offset = layout.dispatch_row(bank, first);
      postings_.add_rows(kHeapRegion, from + offset, stride, to + offset, stride, row_bytes,
                         after - first);
      first = after;
    }
    if (begun) postings_.end();
  }
}

void LaneTraffic::post_weights(std::uint64_t epoch) {
  const window::PacketLayout& layout = port_->layout;
  const int bank = this->bank(epoch);
  for (int step = 1; step < site_.nodes.ranks(); ++step) {
    const int rank = (site_.rank + step) % site_.nodes.ranks();
    if (site_.nodes.together(rank, site_.rank)) continue;
    const std::size_t from = port_->lanes[at(site_.rank)].out(rank);
    const std::size_t to = port_->lanes[at(rank)].in(site_.rank);
    const std::size_t cell = layout.cell(CellKind::combine, bank);
    // Given up; or none of this epoch.
    if (packet(from + cell)[0] != window::tag_of(epoch) || !weights_before(from, bank)) continue;
    postings_.begin(rank, site_.layout(rank).head_slot(site_.rank, /*weights=*/true, bank),
                    {Kind::combine, site_.bank(epoch)}, kHeapRegion);
    postings_.add(kHeapRegion, from + cell, to + cell, layout.cell_bytes());
    const Range weights = tagged(from + layout.weight(bank, 0), layout.weight_bytes(), epoch);
    if (!weights.empty()) {
      const std::size_t offset = layout.weight(bank, weights.begin);
      postings_.add(kHeapRegion, from + offset, to + offset,
                    at(weights.end - weights.begin) * layout.weight_bytes());
    }
    postings_.end();
  }
}

void LaneTraffic::post_answers(std::uint64_t epoch) {
  for (int step = 1; step < site_.nodes.ranks(); ++step) {
    const int home = (site_.rank + step) % site_.nodes.ranks();
    if (!site_.nodes.together(home, site_.rank)) post_answer(home, epoch);
  }
}

void LaneTraffic::post_answer(int home, std::uint64_t epoch) {
  const window::PacketLayout& layout = port_->layout;
  const window::RelayLayout& there = site_.layout(home);
  const int bank = this->bank(epoch);
  const relay::Postings::Account account{Kind::combine, site_.bank(epoch)};
  const std::size_t from = port_->lanes[at(site_.rank)].out(home);
  const std::size_t to = port_->lanes[at(home)].in(site_.rank);
  const std::size_t cell = layout.cell(CellKind::combine, bank);
  if (packet(from + cell)[0] != window::tag_of(epoch)) return;  // Given up.
  const auto put = [&](std::size_t offset, std::size_t bytes) {
    postings_.add(kHeapRegion, from + offset, to + offset, bytes);
  };
  postings_.begin(home, there.answer_slot(site_.rank, /*sums=*/false, bank), account, kHeapRegion);
  put(cell, layout.cell_bytes());
  const Range answers = tagged(from + layout.answer(bank, 0), kPacketBytes, epoch);
  if (!answers.empty()) {
    put(layout.answer(bank, answers.begin), at(answers.end - answers.begin) * kPacketBytes);
  }
  const Range weights = tagged(from + layout.row_weight(bank, 0), layout.weight_bytes(), epoch);
  if (!weights.empty()) {
    put(layout.row_weight(bank, weights.begin),
        at(weights.end - weights.begin) * layout.weight_bytes());
  }
  postings_.end();

  for (int group = 0; group * there.group_rows() < slots_; ++group) {
    const int end = std::min(slots_, (group + 1) * there.group_rows());
    bool begun = false;
    for (int first = group * there.group_rows(); first < end;) {
      if (!has_row(from, epoch, first)) {
        ++first;
        continue;
      }
      int after = first + 1;
      while (after < end && has_row(from, epoch, after)) ++after;
      if (!begun) {
        postings_.begin(home, there.answer_rows_slot(site_.rank, bank, group), account,
                        kHeapRegion);
      }
      begun = true;
      const std::size_t stride = layout.combine_row_stride();
      const std::size_t offset = layout.combine_row(bank, first);
      postings_.add_rows(kHeapRegion, from + offset, stride, to + offset, stride,
                         record_bytes(from, CellKind::combine, bank), after - first);
      first = after;
    }
    if (begun) postings_.end();
  }
}

void LaneTraffic::chunk(std::uint32_t immediate) {
  const std::optional<int> complete = arrivals_.note(immediate);
  if (!complete) return;
  arrivals_.take(*complete);
  const window::RelaySlot slot = site_.own().slot(*complete);
  const int banks = port_->layout.shape().banks;
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
    case What::sign:
    case What::sums: break;
  }
}

// Where the head of a served source's lane at a rank of this node has landed.
std::size_t LaneTraffic::heads(int source, int rank) const noexcept {
  const window::HostLanes& own = port_->lanes[at(site_.rank)];
  return rank == site_.rank ? own.in(source) : own.heads(source, site_.nodes.place_of(rank));
}

void LaneTraffic::take_dispatch_head(int source, int bank) {
  const window::PacketLayout& layout = port_->layout;
  Arrival& arrival = dispatches_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t cell = layout.cell(CellKind::dispatch, bank);
  bool rows = false;
  for (const int rank : site_.neighbours()) {
    const std::size_t from = heads(source, rank);
    if (packet(from + cell)[0] != window::tag_of(arrival.epoch)) continue;  // Given up there.
    const auto mask = static_cast<std::uint16_t>(1U << rank);
    const auto pass_on = [&](std::size_t offset, std::size_t bytes) {
      ferry_.carry(from + offset, offset, bytes, mask, source);
    };
    pass_on(cell, layout.cell_bytes());
    pass_on(layout.count(bank, 0), at(layout.shape().local_experts) * sizeof(std::uint64_t));
    const std::size_t stride = layout.route(bank, 1, 0) - layout.route(bank, 0, 0);
    const Range routes = tagged(from + layout.route(bank, 0, 0), stride, arrival.epoch);
    if (!routes.empty()) {
      pass_on(layout.route(bank, routes.begin, 0), at(routes.end - routes.begin) * stride);
    }
    rows = rows || record_bytes(from, CellKind::dispatch, bank) != 0;
  }
  arrival.head = true;
  for (int group = 0; rows && group < site_.own().groups(tokens_); ++group) {
    const int end = std::min(tokens_, (group + 1) * site_.own().group_rows());
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
  const Arrival& arrival = dispatches_[at(source) * at(port_->layout.shape().banks) + at(bank)];
  std::uint32_t ranks = 0;
  for (const int rank : site_.neighbours()) {
    const std::size_t from = heads(source, rank);
    const std::size_t cell = from + port_->layout.cell(CellKind::dispatch, bank);
    if (packet(cell)[0] == window::tag_of(arrival.epoch) && comes(from, bank, token)) {
      ranks |= 1U << rank;
    }
  }
  return static_cast<std::uint16_t>(ranks);
}

void LaneTraffic::take_dispatch_rows(int source, int bank, int group) {
  Arrival& arrival = dispatches_[at(source) * at(port_->layout.shape().banks) + at(bank)];
  arrival.groups[at(group)] = 1;
  if (!arrival.head) return;
  carry_rows(source, bank, group);
  if (--arrival.groups_missing == 0) end(arrival, source, Kind::dispatch);
}

void LaneTraffic::carry_rows(int source, int bank, int group) {
  const window::PacketLayout& layout = port_->layout;
  const std::size_t in = port_->lanes[at(site_.rank)].in(source);
  const int end = std::min(tokens_, (group + 1) * site_.own().group_rows());
  for (int token = group * site_.own().group_rows(); token < end; ++token) {
    const std::uint16_t ranks = row_ranks(source, bank, token);
    if (ranks == 0) continue;
    const std::size_t offset = layout.dispatch_row(bank, token);
    const int reader = std::countr_zero(ranks);
    ferry_.carry(in + offset, offset, record_bytes(heads(source, reader), CellKind::dispatch, bank),
                 ranks, source);
  }
}

void LaneTraffic::take_weights(int source, int bank) {
  const window::PacketLayout& layout = port_->layout;
  Arrival& arrival = combines_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t in = port_->lanes[at(site_.rank)].in(source);
  // Before any answer: who waits for weights looks at the cell.
  const std::size_t cell = layout.cell(CellKind::combine, bank);
  ferry_.carry(in + cell, cell, layout.cell_bytes(), static_cast<std::uint16_t>(1U << site_.rank),
               source);
  const Range weights = tagged(in + layout.weight(bank, 0), layout.weight_bytes(), arrival.epoch);
  if (!weights.empty()) {
    const std::size_t offset = layout.weight(bank, weights.begin);
    ferry_.carry(in + offset, offset, at(weights.end - weights.begin) * layout.weight_bytes(),
                 static_cast<std::uint16_t>(1U << site_.rank), source);
  }
  arrival.weights = true;
  end_answer(arrival, source, bank);
}

void LaneTraffic::take_answer(int source, int bank) {
  const window::PacketLayout& layout = port_->layout;
  Arrival& arrival = combines_[at(source) * at(layout.shape().banks) + at(bank)];
  const std::size_t in = port_->lanes[at(site_.rank)].in(source);
  const auto own = static_cast<std::uint16_t>(1U << site_.rank);
  const auto pass_on = [&](std::size_t offset, std::size_t bytes) {
    ferry_.carry(in + offset, offset, bytes, own, source);
  };
  pass_on(layout.cell(CellKind::combine, bank), layout.cell_bytes());
  const Range answers = tagged(in + layout.answer(bank, 0), kPacketBytes, arrival.epoch);
  if (!answers.empty()) {
    pass_on(layout.answer(bank, answers.begin), at(answers.end - answers.begin) * kPacketBytes);
  }
  const Range weights =
      tagged(in + layout.row_weight(bank, 0), layout.weight_bytes(), arrival.epoch);
  if (!weights.empty()) {
    pass_on(layout.row_weight(bank, weights.begin),
            at(weights.end - weights.begin) * layout.weight_bytes());
  }
  arrival.head = true;
  for (int group = 0; group < site_.own().groups(slots_); ++group) {
    const int end = std::min(slots_, (group + 1) * site_.own().group_rows());
    bool awaited = false;
    for (int slot = group * site_.own().group_rows(); slot < end && !awaited; ++slot) {
      awaited = has_row(in, arrival.epoch, slot);
    }
    if (!awaited) continue;
    if (arrival.groups[at(group)] != 0) {
      carry_answer_rows(source, arrival, bank, group);
    } else {
      ++arrival.groups_missing;
    }
  }
  end_answer(arrival, source, bank);
}

void LaneTraffic::take_answer_rows(int source, int bank, int group) {
  Arrival& arrival = combines_[at(source) * at(port_->layout.shape().banks) + at(bank)];
  arrival.groups[at(group)] = 1;
  if (!arrival.head) return;
  carry_answer_rows(source, arrival, bank, group);
  --arrival.groups_missing;
  end_answer(arrival, source, bank);
}

void LaneTraffic::carry_answer_rows(int source, const Arrival& arrival, int bank, int group) {
  const window::PacketLayout& layout = port_->layout;
  const std::size_t in = port_->lanes[at(site_.rank)].in(source);
  const int end = std::min(slots_, (group + 1) * site_.own().group_rows());
  for (int slot = group * site_.own().group_rows(); slot < end; ++slot) {
    if (!has_row(in, arrival.epoch, slot)) continue;
    const std::size_t offset = layout.combine_row(bank, slot);
    ferry_.carry(in + offset, offset, record_bytes(in, CellKind::combine, bank),
                 static_cast<std::uint16_t>(1U << site_.rank), source);
  }
}

// Whether an answer in a lane has a row in this slot.
bool LaneTraffic::has_row(std::size_t lane, std::uint64_t epoch, int slot) const noexcept {
  const int each = port_->layout.shape().combine_rows_per_token;
  const Packet answer = packet(lane + port_->layout.answer(bank(epoch), slot / each));
  if (answer[0] != window::tag_of(epoch)) return false;
  // Of what its cell says: the sum of a record in its first slot, or each row in that of its route.
  const Packet form = packet(lane + port_->layout.cell(CellKind::combine, bank(epoch)) +
                             window::kFormPacket * kPacketBytes);
  if ((form[1] & window::kRowPerRoute) == 0) return slot % each == 0 && answer[3] != 0;
  return ((answer[3] >> (slot % each)) & 1U) != 0;
}

// Weights may come after the answers, which say whether any do.
void LaneTraffic::end_answer(Arrival& arrival, int source, int bank) {
  if (!arrival.head || arrival.groups_missing != 0) return;
  const std::size_t in = port_->lanes[at(site_.rank)].in(source);
  if (!weights_before(in, bank) || arrival.weights) end(arrival, source, Kind::combine);
}

void LaneTraffic::end(Arrival& arrival, int source, Kind kind) {
  endings_.push_back({source, kind, arrival.epoch, ferry_.added()});
  arrival.epoch += at(port_->layout.shape().banks);
  arrival.head = arrival.weights = false;
  arrival.groups_missing = 0;
  std::fill(arrival.groups.begin(), arrival.groups.end(), std::uint8_t{0});
}

bool LaneTraffic::tell() {
  bool any = false;
  // In the order in which they ended, which within a source and kind is nearly that of the epochs.
  for (; !endings_.empty() && endings_.front().items <= ferry_.carried(); endings_.pop_front()) {
    const Ending& over = endings_.front();
    ended_[at(over.source)][at(static_cast<int>(over.kind))].push_back(over.epoch);
    any = true;
  }
  for (int source = 0; source < site_.nodes.ranks(); ++source) {
    if (site_.nodes.together(source, site_.rank)) continue;
    for (const Kind kind : {Kind::dispatch, Kind::combine}) {
      count_complete(source, kind);
      any |= tell_kernels(source, kind);
    }
  }
  any |= tell_peers(Kind::dispatch);
  any |= tell_peers(Kind::combine);
  return any;
}

void LaneTraffic::count_complete(int source, Kind kind) {
  std::vector<std::uint64_t>& ended = ended_[at(source)][at(static_cast<int>(kind))];
  std::uint64_t& complete = complete_[at(source)][at(static_cast<int>(kind))];
  for (auto next = ended.begin(); next != ended.end();) {
    if (*next != complete + 1) {
      ++next;
      continue;
    }
    ++complete;
    ended.erase(next);
    next = ended.begin();
  }
}

// What a peer has read, into its lane at this rank's kernels: see the class.
bool LaneTraffic::tell_kernels(int source, Kind kind) {
  // Pair with the stores in Presence::count_up and Progress::tell_flushed.
  const std::uint64_t read = HostAccess::load_acquire(
      *site_.at<const std::uint64_t>(site_.rank, site_.window.told(source, kind)));
  const std::uint64_t flushed = HostAccess::load_acquire(
      *site_.at<const std::uint64_t>(site_.rank, site_.own().flushed(kind)));
  std::uint64_t& told = told_[at(source)][at(static_cast<int>(kind))];
  const std::uint64_t now = std::min(read, flushed);
  if (now <= told) return false;
  told = now;
  ferry_.tell(port_->layout.told(kind), now, source);
  return true;
}

// By the progress threads of this node, or by this rank's kernels: nothing of it is awaited any more.
bool LaneTraffic::given_up(int peer) const noexcept {
  std::uint32_t missing = 0;
  for (Totals& totals : static_cast<Board*>(port_->board.get())->totals) {
    // Pairs with the store in add_totals(), which need order nothing.
    missing |= std::atomic_ref<std::uint32_t>(totals.missing).load(std::memory_order_relaxed);
  }
  // Pairs with add_bits in Presence::give_up.
  return ((missing >> peer) & 1U) != 0 || HostAccess::load_acquire(*site_.at<const std::uint64_t>(
                                              site_.rank, site_.window.gone(peer))) != 0;
}

// What this rank's kernels have read, to other nodes: see the class.
bool LaneTraffic::tell_peers(Kind kind) {
  std::uint64_t read = 0;
  std::uint64_t complete = UINT64_MAX;
  const window::HostLanes& own = port_->lanes[at(site_.rank)];
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank)) continue;
    // Pairs with tell() of the kernels.
    read = std::max(read, HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(
                              host(own.out(peer) + port_->layout.told(kind)))));
    const bool awaited =
        kind == Kind::combine || site_.nodes.rail_peer(peer, site_.own_node()) == site_.rank;
    const bool gone = given_up(peer);
    // The peer waits for nothing any more. Pairs with the load in Presence::tell_accusations.
    auto& accusation = *site_.at<std::uint64_t>(site_.rank, site_.own().accusation(peer));
    if (gone && HostAccess::load_acquire(accusation) == 0) {
      protocol::accuse<HostAccess>(accusation);
    }
    if (awaited && !gone) {
      complete = std::min(complete, complete_[at(peer)][at(static_cast<int>(kind))]);
    }
  }
  auto& word = *site_.at<std::uint64_t>(site_.rank, site_.own().told(kind));
  const std::uint64_t now = std::min(read, complete);
  if (now <= HostAccess::load_acquire(word)) return false;
  HostAccess::store_release(word, now);  // Pairs with the load in Presence::tell_read.
  return true;
}

}  // namespace sluice::engine::cuda
