// SPDX-License-Identifier: MIT
#include "engine/cpu/waiter.hpp"

#include <sched.h>

#include <algorithm>

#include "base/log.hpp"
#include "protocol/host_access.hpp"

namespace sluice::engine::cpu {
namespace {

// A signal between two running ranks takes well under a microsecond: longer spinning only helps
// when nobody waits for this processor.
constexpr int kSpins = 2000;
// Elsewhere a yield hands the processor to who is waited for: a rank, or the own progress thread.
constexpr int kYields = 64;
// Deaths and signals ring the doorbell, so a sleep only bounds how late an expired deadline is
// seen.
constexpr std::int64_t kSleepNsMax = 20'000'000;
// After the deadline, while a peer shows signs of life.
constexpr std::int64_t kLateSleepNs = 2'000'000;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void beat(bootstrap::Group& group) noexcept {
  group.control(group.rank()).beat();
}

Waiter::Waiter(bootstrap::Group& group, const Lanes& lanes, const protocol::Suspects& suspects,
               std::chrono::nanoseconds timeout, const WaitPurpose& purpose,
               std::span<std::int64_t> wait_ns, bool spins) noexcept
    : group_(group),
      lanes_(lanes),
      suspects_(suspects),
      timeout_(timeout),
      deadline_(base::Deadline::after(timeout)),
      purpose_(purpose),
      wait_ns_(wait_ns),
      start_ns_(base::now_ns()),
      standstill_(timeout),
      spins_(spins ? kSpins : 0) {}

bool Waiter::gone(int peer) const noexcept {
  if (peer == group_.rank()) return false;
  if (group_.is_dead(peer)) return true;
  // It has given this rank up: nothing more comes. Pairs with protocol::accuse.
  if (protocol::HostAccess::load_acquire(lanes_.accusation_in(peer)) != 0) return true;
  return has_left(peer) || cut_off(peer);
}

bool Waiter::has_left(int peer) const noexcept {
  // Pairs with the release store in Group::leave.
  return group_.control(peer).state.load(std::memory_order_acquire) ==
         static_cast<std::uint32_t>(memory::RankState::left);
}

// Nothing is heard of it, or who passes on here what it sends, from another node, is gone.
bool Waiter::cut_off(int peer) const noexcept {
  // Pairs with Site::give_up.
  if (protocol::HostAccess::load_acquire(lanes_.gone_in(peer)) != 0) return true;
  if (lanes_.reached(peer)) return false;
  const int own = group_.rank();
  const int forwarder = group_.nodes().rail_peer(peer, group_.nodes().node_of(own));
  // A relay may outlive its rank's calls, and this rank's has perhaps failed. Pairs with Relay::Thread::end.
  const bool ended =
      (protocol::HostAccess::load_acquire(lanes_.relay_of(forwarder)) & relay::kRelayEnded) != 0;
  if (forwarder == own) return ended;
  return ended || suspects_.contains(forwarder) || group_.is_over(forwarder) ||
         protocol::HostAccess::load_acquire(lanes_.gone_in(forwarder)) != 0;
}

bool Waiter::overdue(int peer) noexcept {
  if (deadline_.is_never()) return false;
  const std::int64_t now_ns = base::now_ns();
  if (const std::int64_t uncounted_ns = standstill_.look(now_ns); uncounted_ns > 0) {
    put_off(uncounted_ns);
  }
  if (now_ns < deadline_.at_ns()) return false;
  if (!sleeper_) return true;  // Too short a wait to see signs of life.
  Watched& watched = watched_[static_cast<std::size_t>(peer)];
  if (now_ns < watched.due_ns) return false;
  const std::uint64_t beats = beats_of(peer);
  if (beats == watched.beats || watched.extensions >= group_.size() - 1) return true;
  watched = {now_ns + timeout_.count(), beats, watched.extensions + 1};
  return false;
}

void Waiter::put_off(std::int64_t by_ns) noexcept {
  deadline_.put_off(by_ns);
  if (!sleeper_) return;
  for (int peer = 0; peer < group_.size(); ++peer) {
    watched_[static_cast<std::size_t>(peer)].due_ns += by_ns;
  }
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
    start_watching();
    sleeper_.emplace(group_.control(group_.rank()).doorbell);
  } else {
    beat(group_);
    const std::int64_t left_ns = deadline_.remaining_ns();
    sleeper_->sleep(left_ns > 0 ? std::min(left_ns, kSleepNsMax) : kLateSleepNs);
  }
}

void Waiter::start_watching() noexcept {
  for (int peer = 0; peer < group_.size(); ++peer) {
    watched_[static_cast<std::size_t>(peer)] = {deadline_.at_ns(), beats_of(peer), 0};
  }
}

std::uint64_t Waiter::beats_of(int peer) const noexcept {
  if (!lanes_.reached(peer)) return protocol::HostAccess::load_acquire(lanes_.beats_in(peer));
  return group_.control(peer).beats.load(std::memory_order_relaxed);
}

void Waiter::arrived(int peer) noexcept {
  wait_ns_[static_cast<std::size_t>(peer)] += base::now_ns() - start_ns_;
}

void Waiter::gave_up(int peer) noexcept {
  const std::int64_t waited_ns = base::now_ns() - start_ns_;
  wait_ns_[static_cast<std::size_t>(peer)] += waited_ns;
  const char* reason = "its deadline has passed";
  base::LogLevel level = base::LogLevel::warn;
  if (protocol::HostAccess::load_acquire(lanes_.accusation_in(peer)) != 0) {
    reason = "it has given this rank up";
  } else if (group_.is_dead(peer)) {
    reason = "it has ended";
  } else if (cut_off(peer)) {
    reason = "it is cut off";
  } else if (has_left(peer)) {
    reason = "it has left";
    level = base::LogLevel::info;
  }
  base::log(level, "rank {}: gave up rank {} ({} {}, epoch {}) after {:.3f} s: {}", group_.rank(),
            peer, purpose_.operation, purpose_.what, purpose_.epoch,
            static_cast<double>(waited_ns) * 1e-9, reason);
}

}  // namespace sluice::engine::cpu
