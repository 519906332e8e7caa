// SPDX-License-Identifier: MIT
#include "engine/cuda/watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/background_thread.hpp"
#include "base/deadline.hpp"
#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {

Watch::Watch(std::shared_ptr<bootstrap::Group> group, const relay::Relay* relay, Board* board)
    : group_(std::move(group)),
      relay_(relay),
      board_(board),
      heard_(static_cast<std::size_t>(group_->size())) {
  thread_ = base::start_background_thread("sluice-watch", [this] { run(); });
}

Watch::~Watch() {
  stop_.store(true);
  thread_.join();
}

void Watch::run() {
  std::uint64_t waits = 0;
  while (!stop_.load()) {
    // Pairs with the store in look_up().
    const std::uint64_t now_waits = std::atomic_ref<std::uint64_t>(board_->waits).load();
    if (now_waits != waits) group_->control(group_->rank()).beat();
    waits = now_waits;
    std::uint32_t gone = 0;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank == group_->rank()) continue;
      if (is_gone(rank)) gone |= 1U << rank;
      listen(rank, heard_[static_cast<std::size_t>(rank)]);
    }
    // Pairs with the load in look_up().
    std::atomic_ref<std::uint32_t>(board_->gone).store(gone);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool Watch::elsewhere(int rank) const noexcept {
  return relay_ != nullptr && !group_->nodes().together(rank, group_->rank());
}

bool Watch::is_gone(int rank) const noexcept {
  if (group_->is_dead(rank) || has_left(rank)) return true;
  if (relay_ == nullptr) return false;
  // It is silent, or cut off, or has given this rank up.
  const relay::Site& site = relay_->site();
  if (says(site.window.gone(rank)) || says(site.window.accusation(rank))) return true;
  if (!elsewhere(rank)) return false;
  // What it sends is passed on here by one that is gone.
  const int forwarder = site.nodes.rail_peer(rank, site.own_node());
  return site.relay_ended(forwarder) ||
         (forwarder != site.rank &&
          (group_->is_over(forwarder) || says(site.window.gone(forwarder))));
}

// Its kernels have ended: World::leave comes after that. Of a rank of another node the relay says it.
bool Watch::has_left(int rank) const noexcept {
  // Pairs with the release store in Group::leave.
  return !elsewhere(rank) && group_->control(rank).state.load(std::memory_order_acquire) ==
                                 static_cast<std::uint32_t>(memory::RankState::left);
}

// Pairs with Site::give_up, and with protocol::accuse in Presence::take.
bool Watch::says(std::size_t offset) const noexcept {
  const relay::Site& site = relay_->site();
  return protocol::HostAccess::load_acquire(*site.at<const std::uint64_t>(site.rank, offset)) != 0;
}

std::uint64_t Watch::beats_of(int rank) const noexcept {
  if (!elsewhere(rank)) return group_->control(rank).beats.load(std::memory_order_relaxed);
  // Pairs with the store in Presence::count_up.
  const relay::Site& site = relay_->site();
  return protocol::HostAccess::load_acquire(
      *site.at<const std::uint64_t>(site.rank, site.window.beats(rank)));
}

void Watch::listen(int rank, Heard& heard) {
  const std::int64_t now_ns = base::now_ns();
  const std::uint64_t beats = beats_of(rank);
  if (beats != heard.beats || heard.at_ns == 0) heard = {beats, now_ns};
  const std::int64_t silent_ms = (now_ns - heard.at_ns) / 1'000'000;
  // Pairs with the load in is_overdue().
  std::atomic_ref<std::uint32_t>(board_->silent_ms[rank])
      .store(static_cast<std::uint32_t>(std::min<std::int64_t>(silent_ms, INT32_MAX)));
}

}  // namespace sluice::engine::cuda
