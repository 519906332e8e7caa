// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "memory/control_page.hpp"

namespace sluice::engine::cpu {

/// What is being waited for, for messages.
struct WaitPurpose {
  const char* operation;  // "dispatch" or "combine"
  const char* what;       // "cell", "guard", ...
  std::uint64_t epoch;
};

/// How a rank of the CPU engine waits (protocol::await): it spins briefly when every rank has a
/// core, then yields, then sleeps on its doorbell. Signals ring the doorbell after they are stored,
/// and so does the monitor when a peer dies.
class Waiter {
 public:
  /// `wait_ns`: one counter per peer, to which the time until its arrival is added.
  Waiter(bootstrap::Group& group, base::Deadline deadline, const WaitPurpose& purpose,
         std::span<std::int64_t> wait_ns) noexcept;

  bool gone(int peer) const noexcept;
  bool expired() const noexcept { return deadline_.expired(); }
  void prepare() noexcept;
  void pause() noexcept;
  void arrived(int peer) noexcept;
  void gave_up(int peer) noexcept;

 private:
  bootstrap::Group& group_;
  base::Deadline deadline_;
  WaitPurpose purpose_;
  std::span<std::int64_t> wait_ns_;
  std::int64_t start_ns_;
  int pauses_ = 0;
  int spins_;
  std::optional<memory::Sleeper> sleeper_;
};

}  // namespace sluice::engine::cpu
