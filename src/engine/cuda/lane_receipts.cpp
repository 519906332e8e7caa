// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_receipts.hpp"

#include <algorithm>

#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::engine::cuda {

using protocol::HostAccess;
using protocol::Kind;

LaneReceipts::LaneReceipts(const relay::Site& site, const relay::Postings& postings,
                           const LaneView& view, Ferry& ferry)
    : site_(site),
      postings_(postings),
      view_(view),
      ferry_(ferry),
      ended_(at(site.nodes.ranks())),
      complete_(ended_.size()),
      told_(ended_.size()) {}

// In the order in which they ended, which within a source and kind is nearly that of the epochs.
bool LaneReceipts::note_endings() {
  bool any = false;
  for (; !endings_.empty() && endings_.front().items <= ferry_.carried(); endings_.pop_front()) {
    const Ending& over = endings_.front();
    if (over.sums) {
      // Of tokens that nobody there has answered nothing comes: kernels know by this word.
      ferry_.tell_summed(view_.layout().summed(view_.bank(over.epoch)), over.epoch, over.source);
      endings_.push_back({over.source, over.kind, over.epoch, ferry_.added(), false});
      any = true;
      continue;
    }
    ended_[at(over.source)][at(static_cast<int>(over.kind))].push_back(over.epoch);
    any = true;
  }
  return any;
}

bool LaneReceipts::step(const Posted& posted) {
  bool any = note_endings();
  for (int source = 0; source < site_.nodes.ranks(); ++source) {
    if (site_.nodes.together(source, site_.rank)) continue;
    for (const Kind kind : {Kind::dispatch, Kind::combine}) {
      count_complete(source, kind);
      any |= tell_kernels(source, kind, posted[at(static_cast<int>(kind))]);
    }
  }
  any |= tell_peers(Kind::dispatch);
  any |= tell_peers(Kind::combine);
  any |= tell_flushed();
  return any;
}

// Rows of throughput mode lie in one place for all nodes: kernels that have given somebody up, who tells no more, still wait
// until what it was sent is on its way no more (await_flushed()).
bool LaneReceipts::tell_flushed() {
  if (!view_.throughput()) return false;
  // Pairs with the store in Progress::tell_flushed.
  const std::uint64_t flushed = HostAccess::load_acquire(
      *site_.at<const std::uint64_t>(site_.rank, site_.own().flushed(Kind::dispatch)));
  if (flushed <= told_flushed_) return false;
  told_flushed_ = flushed;
  ferry_.tell(view_.layout().told(Kind::dispatch), flushed, site_.rank);
  return true;
}

void LaneReceipts::count_complete(int source, Kind kind) {
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

// What a peer has read, into its lane at this rank's kernels: see LaneTraffic.
bool LaneReceipts::tell_kernels(int source, Kind kind, std::uint64_t posted) {
  // Pairs with the store in Presence::count_up.
  const std::uint64_t read = HostAccess::load_acquire(
      *site_.at<const std::uint64_t>(site_.rank, site_.window.told(source, kind)));
  std::uint64_t& told = told_[at(source)][at(static_cast<int>(kind))];
  const int rail_peer = site_.rail_peer(site_.nodes.node_of(source));
  const std::uint64_t before = told;
  while (told < std::min(read, posted)) {
    const relay::Postings::Account account{kind, site_.bank(told + 1)};
    if (!postings_.settled(source, account) || !postings_.settled(rail_peer, account)) break;
    ++told;
  }
  if (told == before) return false;
  ferry_.tell(view_.layout().told(kind), told, source);
  return true;
}

// What this rank's kernels have read, to other nodes: see LaneTraffic.
bool LaneReceipts::tell_peers(Kind kind) {
  std::uint64_t read = 0;
  std::uint64_t complete = UINT64_MAX;
  const window::FarLanes& own = view_.lanes(site_.rank);
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank)) continue;
    // Pairs with tell() and tell_once_read() of the kernels.
    read = std::max(read, HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(
                              view_.host(own.out(peer) + view_.layout().told(kind)))));
    const bool awaited =
        kind == Kind::combine || site_.nodes.rail_peer(peer, site_.own_node()) == site_.rank;
    const bool gone = given_up(site_, view_, peer);
    // The peer waits for nothing any more. Pairs with the load in Presence::tell_accusations.
    auto& accusation = *site_.at<std::uint64_t>(site_.rank, site_.own().accusation(peer));
    if (gone && HostAccess::load_acquire(accusation) == 0) {
      protocol::accuse<HostAccess>(accusation);
    }
    if (awaited && !gone) {
      complete = std::min(complete, complete_[at(peer)][at(static_cast<int>(kind))]);
    }
  }
  carried_[at(static_cast<int>(kind))] = complete;
  auto& word = *site_.at<std::uint64_t>(site_.rank, site_.own().told(kind));
  const std::uint64_t now = std::min(read, complete);
  if (now <= HostAccess::load_acquire(word)) return false;
  HostAccess::store_release(word, now);  // Pairs with the load in Presence::tell_read.
  return true;
}

}  // namespace sluice::engine::cuda
