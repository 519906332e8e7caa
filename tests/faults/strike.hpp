// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <atomic>

#include "support/findings.hpp"

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

}  // namespace sluice::faults
