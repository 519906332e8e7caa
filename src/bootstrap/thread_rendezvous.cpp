// SPDX-License-Identifier: MIT
#include "bootstrap/thread_rendezvous.hpp"

#include <chrono>
#include <new>
#include <utility>

#include "bootstrap/agreement.hpp"

namespace sluice::bootstrap {

ThreadRendezvous::ThreadRendezvous(int size)
    : size_(size),
      pages_(std::make_unique<memory::ControlPage[]>(static_cast<std::size_t>(size))),
      dead_(std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(size))),
      arriving_(static_cast<std::size_t>(size)),
      arrived_(static_cast<std::size_t>(size), false),
      gone_(static_cast<std::size_t>(size), false) {}

Result<ThreadRendezvous::Round> ThreadRendezvous::exchange(int rank, Contribution contribution,
                                                           base::Deadline deadline) {
  const auto self = static_cast<std::size_t>(rank);
  std::unique_lock lock(mutex_);
  if (gone_[self]) {
    return Status(StatusCode::failed_precondition,
                  "rank " + std::to_string(rank) + " has left this world and calls a collective");
  }
  if (!broken_.ok()) {
    return Status(broken_.code(),
                  "an earlier collective of this world failed: " + broken_.message());
  }
  const std::uint64_t round = round_;
  arriving_[self] = std::move(contribution);
  arrived_[self] = true;
  ++arrived_count_;
  if (arrived_count_ == size_) {
    last_ = std::make_shared<const std::vector<Contribution>>(
        std::exchange(arriving_, std::vector<Contribution>(static_cast<std::size_t>(size_))));
    arrived_.assign(static_cast<std::size_t>(size_), false);
    arrived_count_ = 0;
    ++round_;
    changed_.notify_all();
    return take_last();
  }
  // While this rank is inside, no later round can complete: last_ is its round's when round_ moved.
  const auto settled = [&] {
    if (round_ == round && broken_.ok()) broken_ = gone_status();
    return round_ != round || !broken_.ok();
  };
  bool in_time = true;
  if (deadline.is_never()) {
    changed_.wait(lock, settled);
  } else {
    const std::chrono::steady_clock::time_point at{std::chrono::nanoseconds(deadline.at_ns())};
    in_time = changed_.wait_until(lock, at, settled);
  }
  if (round_ != round) return take_last();
  if (!in_time) {
    broken_ = missing_status(StatusCode::deadline_exceeded, "did not come before the deadline");
  }
  changed_.notify_all();
  return broken_;
}

ThreadRendezvous::Round ThreadRendezvous::take_last() {
  if (++taken_count_ < size_) return last_;
  taken_count_ = 0;
  return std::exchange(last_, nullptr);
}

Status ThreadRendezvous::missing_status(StatusCode code, const char* why) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!arrived_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return Status(code, "collective " + std::to_string(round_) + " of a world of " +
                          std::to_string(size_) + " threads: " + ranks_text(missing) + " " + why);
}

Status ThreadRendezvous::gone_status() const {
  std::vector<int> gone;
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (gone_[index] && !arrived_[index]) gone.push_back(rank);
  }
  if (gone.empty()) return {};
  return Status(StatusCode::unavailable, "collective " + std::to_string(round_) +
                                             " of a world of " + std::to_string(size_) +
                                             " threads: " + ranks_text(gone) + " left");
}

void ThreadRendezvous::give_up(int rank, const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (broken_.ok()) {
      try {
        broken_ =
            Status(why.code(), "rank " + std::to_string(rank) + " was cut short: " + why.message());
      } catch (const std::bad_alloc&) {
        broken_ = Status(StatusCode::out_of_memory, "no memory");  // Too short to need any.
      }
    }
  }
  changed_.notify_all();
}

void ThreadRendezvous::leave(int rank) {
  // Pairs with the acquire loads of peers that ask whether this rank has left.
  page(rank).state.store(static_cast<std::uint32_t>(memory::RankState::left),
                         std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
  }
  changed_.notify_all();
  ring_all();
}

void ThreadRendezvous::abandon(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_[static_cast<std::size_t>(rank)]) return;
    gone_[static_cast<std::size_t>(rank)] = true;
  }
  dead_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  changed_.notify_all();
  ring_all();
}

void ThreadRendezvous::ring_all() noexcept {
  for (int rank = 0; rank < size_; ++rank) page(rank).doorbell.ring();
}

}  // namespace sluice::bootstrap
