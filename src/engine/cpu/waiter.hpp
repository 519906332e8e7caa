// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "base/deadline.hpp"
#include "base/standstill.hpp"
#include "bootstrap/group.hpp"
#include "engine/cpu/lanes.hpp"
#include "memory/control_page.hpp"
#include "protocol/await.hpp"
#include "sluice/limits.hpp"

namespace sluice::engine::cpu {

/// What is being waited for, for messages.
struct WaitPurpose {
  const char* operation;  // "dispatch" or "combine"
  const char* what;       // "cell", "guard", ...
  std::uint64_t epoch;
};

/// How a rank of the CPU engine waits (protocol::await): it spins briefly where it has a processor
/// for each of its threads, then yields, then sleeps on its doorbell. Signals ring the doorbell after they are stored,
/// and so does the monitor when a peer dies.
///
/// A peer is overdue when `timeout` has passed without a sign of life from it. Ranks that wait, or
/// end a half, beat: a living rank that is itself held up by a silent one is not given up with it,
/// but gets another `timeout`, at most R - 1 times (docs/protocol.md, "One silent rank"). Time in which the waiter itself
/// stood still does not count.
class Waiter {
 public:
  /// `wait_ns`: one counter per peer, to which the time until its arrival is added.
  Waiter(bootstrap::Group& group, const Lanes& lanes, const protocol::Suspects& suspects,
         std::chrono::nanoseconds timeout, const WaitPurpose& purpose,
         std::span<std::int64_t> wait_ns, bool spins) noexcept;

  bool gone(int peer) const noexcept;
  bool overdue(int peer) noexcept;
  void prepare() noexcept;
  void pause() noexcept;
  void arrived(int peer) noexcept;
  void gave_up(int peer) noexcept;

 private:
  /// A peer that a long wait watches.
  struct Watched {
    std::int64_t due_ns;
    std::uint64_t beats;
    int extensions;
  };

  void put_off(std::int64_t by_ns) noexcept;
  void start_watching() noexcept;
  std::uint64_t beats_of(int peer) const noexcept;
  bool has_left(int peer) const noexcept;
  bool cut_off(int peer) const noexcept;

  bootstrap::Group& group_;
  const Lanes& lanes_;
  const protocol::Suspects& suspects_;
  std::chrono::nanoseconds timeout_;
  base::Deadline deadline_;
  WaitPurpose purpose_;
  std::span<std::int64_t> wait_ns_;
  std::int64_t start_ns_;
  base::Standstill standstill_;
  int pauses_ = 0;
  int spins_;
  std::optional<memory::Sleeper> sleeper_;  // Set once the wait is a long one.
  std::array<Watched, kMaxRanks> watched_;  // Filled with sleeper_.
};

/// A sign of life of this rank; see Waiter.
void beat(bootstrap::Group& group) noexcept;

}  // namespace sluice::engine::cpu
