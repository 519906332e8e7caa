// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace sluice::bench {

/// Signs of life of one rank. The launcher reads the counter; a terminal gets a line now and then.
class Progress {
 public:
  using Counter = std::atomic<std::uint64_t>;

  /// `counter` may be null; `shown`: this rank prints, if standard error is a terminal.
  Progress(Counter* counter, bool shown) noexcept;
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Ends the process with status 2 and a message when no tick comes for that long: for waits inside
  /// libraries that know no deadline. Uses the process's alarm.
  void end_process_after(double seconds) noexcept;

  void tick(std::string_view phase, int done, int total) noexcept;

 private:
  Counter* counter_;  // Relaxed: the launcher only asks whether it changes.
  bool shown_;
  bool printed_ = false;
  unsigned alarm_s_ = 0;  // 0: none.
  std::int64_t next_print_ns_ = 0;
};

}  // namespace sluice::bench
