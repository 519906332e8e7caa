// SPDX-License-Identifier: MIT
#include "transport/libfabric/receiver.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/background_thread.hpp"
#include "base/deadline.hpp"

namespace sluice::transport {

Receiver::Receiver(std::size_t waiting_max, bool alone, Poll poll)
    : poll_(std::move(poll)),
      alone_(alone),
      ring_(std::bit_ceil(std::max<std::size_t>(waiting_max, 1))) {
  thread_ = base::start_background_thread("sluice-receive", [this] { run(); });
}

Receiver::~Receiver() {
  if (process_.forked()) {  // It is the parent's.
    thread_.detach();
    return;
  }
  stopping_.store(true, std::memory_order_release);  // Pairs with the load in run().
  bell_.ring();
  thread_.join();
}

void Receiver::run() noexcept {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::int64_t busy_ns = base::now_ns();
  std::int64_t sampled_ns = busy_ns;
  std::uint64_t sampled_takes = 0;
  while (!stopping_.load(std::memory_order_acquire)) {  // Pairs with the store in ~Receiver.
    const bool any = look() > 0;
    const std::int64_t now_ns = base::now_ns();
    if (any) busy_ns = now_ns;
    if (now_ns >= sampled_ns + kSampleNs) {
      const std::uint64_t takes = takes_.load(std::memory_order_relaxed);  // Orders nothing.
      const auto samples = static_cast<std::uint64_t>((now_ns - sampled_ns) / kSampleNs);
      if (takes - sampled_takes >= kEagerTakes * samples) busy_ns = now_ns;
      sampled_takes = takes;
      sampled_ns = now_ns;
    }
    if (now_ns < busy_ns + kEagerNs) {
      if (!any && !alone_) ::sched_yield();
      continue;
    }
    memory::Sleeper sleeper(bell_);
    // Looked at once more: what came before the announcement did not ring.
    if (!stopping_.load(std::memory_order_acquire) && !stirred_.load(std::memory_order_acquire)) {
      sleeper.sleep(std::clamp((now_ns - busy_ns) / kNapParts, kNapNsMin, kNapNsMax));
    }
    if (stirred_.exchange(false, std::memory_order_acquire)) busy_ns = base::now_ns();
  }
}

std::size_t Receiver::look() noexcept {
  std::array<std::uint32_t, kAtOnce> found;
  const std::uint64_t head = head_.load(std::memory_order_relaxed);
  // Pairs with the store in take().
  const std::uint64_t waiting = head - tail_.load(std::memory_order_acquire);
  const std::size_t room = std::min<std::size_t>(kAtOnce, ring_.size() - waiting);
  if (room == 0) return 0;
  const std::size_t count = poll_(std::span(found).first(room));
  for (std::size_t i = 0; i < count; ++i) ring_[(head + i) & (ring_.size() - 1)] = found[i];
  // Pairs with the load in take().
  if (count > 0) head_.store(head + count, std::memory_order_release);
  return count;
}

std::size_t Receiver::take(std::span<std::uint32_t> immediates) noexcept {
  takes_.store(takes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (seen_ == tail) seen_ = head_.load(std::memory_order_acquire);  // Pairs with look().
  const std::size_t count = std::min<std::size_t>(seen_ - tail, immediates.size());
  if (count == 0) return 0;
  for (std::size_t i = 0; i < count; ++i) immediates[i] = ring_[(tail + i) & (ring_.size() - 1)];
  tail_.store(tail + count, std::memory_order_release);  // Pairs with look().
  return count;
}

void Receiver::stir() noexcept {
  if (stirred_.load(std::memory_order_relaxed)) return;  // It has yet to look at that.
  stirred_.store(true, std::memory_order_release);       // Pairs with the loads in run().
  bell_.ring();
}

}  // namespace sluice::transport
