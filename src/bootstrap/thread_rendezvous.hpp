// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "memory/control_page.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Where the threads of one world meet: rounds of an exchange, and their control pages.
class ThreadRendezvous {
 public:
  /// What a rank brings to a round: bytes, or an object that the threads then share.
  struct Contribution {
    std::string blob;
    std::shared_ptr<void> object;
  };
  using Round = std::shared_ptr<const std::vector<Contribution>>;

  explicit ThreadRendezvous(int size);

  int size() const noexcept { return size_; }
  memory::ControlPage& page(int rank) noexcept { return pages_[static_cast<std::size_t>(rank)]; }
  bool is_dead(int rank) const noexcept {
    // Pairs with the release store in abandon().
    return dead_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }

  /// Every rank's contribution to this round. A round that a rank misses (its deadline passed, or a
  /// rank has gone) breaks the rendezvous: that call and all later ones fail, so rounds never mix.
  Result<Round> exchange(int rank, Contribution contribution, base::Deadline deadline);

  /// See Group::give_up.
  void give_up(int rank, const Status& why) noexcept;
  /// This rank makes no more calls.
  void leave(int rank);
  /// This rank's group was destroyed; without leave() before, its peers see it as dead.
  void abandon(int rank);

 private:
  Round take_last();
  Status missing_status(StatusCode code, const char* why) const;
  Status gone_status() const;
  void ring_all() noexcept;

  const int size_;
  std::unique_ptr<memory::ControlPage[]> pages_;
  std::unique_ptr<std::atomic<bool>[]> dead_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // All of the following are guarded by mutex_.
  std::uint64_t round_ = 0;
  std::vector<Contribution> arriving_;
  std::vector<bool> arrived_;
  int arrived_count_ = 0;
  Round last_;  // The completed round, until all ranks have taken it; it owns shared objects.
  int taken_count_ = 0;
  std::vector<bool> gone_;
  Status broken_;
};

}  // namespace sluice::bootstrap
