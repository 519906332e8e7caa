// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <atomic>

#include "support/findings.hpp"
#include "support/run_ranks.hpp"

/// What befalls the calling process, and when it did.
namespace sluice::faults {

enum class What { killed, frozen, cut_off };

/// What is promised by default until all others' reports name the victim, and what a busy machine may add.
constexpr double longest_seconds(What what) {
  return (what == What::killed ? 1.0 : 1.5) + 0.5;
}

/// A time that all processes share which are forked later.
class Time {
 public:
  Time();
  ~Time();
  Time(const Time&) = delete;
  Time& operator=(const Time&) = delete;

  void is_now() const;
  double seconds_until(std::int64_t then_ns) const;

 private:
  std::atomic<std::int64_t>* at_ns_;
};

/// cut_off: with its whole node, whose namespaces are its own. The time is when it struck.
void strike(What what, const Time& time, support::Findings& findings);
/// For who was cut off.
void reconnect(support::Findings& findings);

/// What a rank says at its end: when (0: never) a report named whom it had to, as a note, and as a finding if that was too late.
void check_named(What what, const Time& time, int awaited, std::int64_t named_ns,
                 support::Findings& findings);
/// Prints these times, and fails the test for all that is not the victim's death. False: the machine has no namespaces.
bool expect_named(const support::RunResult& result, const char* name, int victim);

}  // namespace sluice::faults
