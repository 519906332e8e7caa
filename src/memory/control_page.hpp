// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::memory {

/// Where a rank sleeps while it waits: one per rank, in memory that all ranks of its node map.
///
/// A ring is never lost. The waiter announces itself (sleepers), reads `word`, looks at what it
/// waits for, and sleeps only while `word` is unchanged. The ringer stores what is waited for,
/// increments `word`, then looks at `sleepers`. Both accesses of each side are sequentially
/// consistent, so either the ringer sees the sleeper and wakes it, or the sleeper sees the new word
/// (and through it, by release and acquire, what was stored before it) and does not sleep.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> word{0};      // Incremented by ringers; pairs with wait() loads.
  std::atomic<std::uint32_t> sleepers{0};  // Incremented and decremented by waiters.

  /// Call after the release store of the signal.
  void ring() noexcept;
};

/// What a waiter does: construct, look at the condition, sleep, look again, destroy.
class Sleeper {
 public:
  explicit Sleeper(Doorbell& bell) noexcept;
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  /// Reads the doorbell's word. The condition is looked at between this call and sleep().
  void prepare() noexcept;
  /// Sleeps until the doorbell has rung since prepare(), or `timeout_ns` passed.
  void sleep(std::int64_t timeout_ns) noexcept;

 private:
  Doorbell& bell_;
  std::uint32_t seen_ = 0;
};

enum class RankState : std::uint32_t {
  alive = 0,
  left = 1,
  gave_up = 2,  ///< It makes no collective call any more, but lives, as do its communicators.
};

/// One page per rank, shared by all ranks of a node.
struct alignas(4096) ControlPage {
  Doorbell doorbell;
  /// RankState; stored by its rank with release, loaded by peers with acquire.
  std::atomic<std::uint32_t> state{0};
  /// Signs of life, on a line of their own: advanced by its rank, relaxed, while it waits and when
  /// it ends a half; peers whose deadline has passed look whether it moved. Orders nothing.
  alignas(64) std::atomic<std::uint64_t> beats{0};

  /// By threads of its rank.
  void beat() noexcept { beats.fetch_add(1, std::memory_order_relaxed); }
};

static_assert(sizeof(ControlPage) == 4096);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace sluice::memory
