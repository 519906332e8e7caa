// SPDX-License-Identifier: MIT
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "base/deadline.hpp"

namespace sluice::bench {
namespace {

constexpr std::int64_t kPrintEveryNs = 500'000'000;

/// Only calls that a signal handler may make.
extern "C" void end_without_progress(int) {
  constexpr char kMessage[] = "sluice bench: no progress within --watchdog seconds; ending\n";
  // The process ends either way; a lost message changes nothing.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(2);
}

}  // namespace

Progress::Progress(Counter* counter, bool shown) noexcept
    : counter_(counter),
      shown_(shown && isatty(STDERR_FILENO) == 1),
      next_print_ns_(base::now_ns() + kPrintEveryNs) {}

Progress::~Progress() {
  if (alarm_s_ > 0) alarm(0);
  if (printed_) std::fputs("\r\033[K", stderr);
}

void Progress::end_process_after(double seconds) noexcept {
  alarm_s_ = static_cast<unsigned>(std::ceil(seconds));
  std::signal(SIGALRM, end_without_progress);
  alarm(alarm_s_);
}

void Progress::tick(std::string_view phase, int done, int total) noexcept {
  if (counter_ != nullptr) counter_->fetch_add(1, std::memory_order_relaxed);
  if (alarm_s_ > 0) alarm(alarm_s_);
  if (!shown_ || base::now_ns() < next_print_ns_) return;
  next_print_ns_ = base::now_ns() + kPrintEveryNs;
  printed_ = true;
  std::fprintf(stderr, "\r\033[K%.*s %d of %d", static_cast<int>(phase.size()), phase.data(),
               std::max(done, 0), total);
  std::fflush(stderr);
}

}  // namespace sluice::bench
