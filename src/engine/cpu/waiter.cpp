// SPDX-License-Identifier: MIT
#include "engine/cpu/waiter.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"

namespace sluice::engine::cpu {
namespace {

// A signal between two running ranks takes well under a microsecond: longer spinning only helps
// when no rank waits for this core.
constexpr int kSpins = 2000;
// With more ranks than cores a yield hands the core to the rank that is waited for.
constexpr int kYields = 64;
// Deaths and signals ring the doorbell, so a sleep only bounds how late an expired deadline is
// seen.
constexpr std::int64_t kSleepNsMax = 20'000'000;

int spins_for(int ranks) noexcept {
  static const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return static_cast<unsigned>(ranks) <= cores ? kSpins : 0;
}

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Waiter::Waiter(bootstrap::Group& group, base::Deadline deadline, const WaitPurpose& purpose,
               std::span<std::int64_t> wait_ns) noexcept
    : group_(group),
      deadline_(deadline),
      purpose_(purpose),
      wait_ns_(wait_ns),
      start_ns_(base::now_ns()),
      spins_(spins_for(group.size())) {}

bool Waiter::gone(int peer) const noexcept {
  if (peer == group_.rank()) return false;
  if (group_.is_dead(peer)) return true;
  // Pairs with the release store in Group::leave.
  return group_.control(peer).state.load(std::memory_order_acquire) ==
         static_cast<std::uint32_t>(memory::RankState::left);
}

void Waiter::prepare() noexcept {
  if (sleeper_) sleeper_->prepare();
}

void Waiter::pause() noexcept {
  ++pauses_;
  if (pauses_ <= spins_) {
    relax();
  } else if (pauses_ <= spins_ + kYields) {
    ::sched_yield();
  } else if (!sleeper_) {
    // The conditions are looked at once more before the first sleep: signals that came before the
    // announcement did not ring.
    sleeper_.emplace(group_.control(group_.rank()).doorbell);
  } else {
    sleeper_->sleep(std::min(deadline_.remaining_ns(), kSleepNsMax));
  }
}

void Waiter::arrived(int peer) noexcept {
  wait_ns_[static_cast<std::size_t>(peer)] += base::now_ns() - start_ns_;
}

void Waiter::gave_up(int peer) noexcept {
  const std::int64_t waited_ns = base::now_ns() - start_ns_;
  wait_ns_[static_cast<std::size_t>(peer)] += waited_ns;
  base::log_warn("rank {}: gave up rank {} ({} {}, epoch {}) after {:.3f} s: {}", group_.rank(),
                 peer, purpose_.operation, purpose_.what, purpose_.epoch,
                 static_cast<double>(waited_ns) * 1e-9,
                 gone(peer) ? "it has ended" : "its deadline has passed");
}

}  // namespace sluice::engine::cpu
