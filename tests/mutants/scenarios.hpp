// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/test_point.hpp"

/// Small scenarios that are right without a mutant, and go wrong with each of them: by bits, by a
/// report, by a deadline of 3 s, or by a race that the thread sanitizer sees.
namespace sluice::mutants {

struct TestScenario {
  const char* name;
  std::function<std::string()> run;  ///< What went wrong, "" if nothing did.
};

std::vector<TestScenario> semantics_scenarios();
std::vector<TestScenario> protocol_scenarios();
std::vector<TestScenario> absence_scenarios();

/// What a rank does at a test point, besides being counted. Called by several threads.
using Script = std::function<void(base::TestPoint point, int rank, int peer)>;

/// Runs a scenario's script at every test point while it lives; counts start at 0.
class ScriptRun {
 public:
  explicit ScriptRun(Script script);
  ~ScriptRun();
  ScriptRun(const ScriptRun&) = delete;
  ScriptRun& operator=(const ScriptRun&) = delete;
};

/// How often the rank has reached the point (for `peer`; -1 where the point has no peer). Counting
/// is relaxed: it must not order what the protocol fails to order.
int count(base::TestPoint point, int rank, int peer = -1);
/// Waits until `done()`, but not for ever: in the right protocol some of these never come.
void wait_for(const std::function<bool()>& done, std::chrono::milliseconds at_most);

}  // namespace sluice::mutants
