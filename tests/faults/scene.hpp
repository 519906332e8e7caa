// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "faults/fault.hpp"
#include "faults/round.hpp"
#include "support/run_ranks.hpp"

/// Ranks as forked processes of which some end or freeze in the middle of a round.
namespace sluice::faults {

struct Victim {
  int rank = 0;
  Fault fault;
};

struct Scene {
  Terms terms;
  std::vector<Victim> victims;
  int rounds_before = 7;  ///< All banks have been used by then.
  int rounds_after = 6;
};

/// The victims are killed. Every call has a deadline of 20 s and must end long before it.
support::RunResult run_killed(const Scene& scene);

/// The one victim is frozen until its peers have gone on without it; then it is thawed and goes on
/// alone, while they make `rounds_after` more rounds. The round of the fault has short deadlines.
support::RunResult run_frozen(const Scene& scene);

/// What every rank's process does around `body`: where its tensors lie. Of each executable its own.
support::RankBody in_its_place(support::RankBody body);

/// What `run_killed` and `run_frozen` found, without the deaths that were meant.
std::vector<std::string> unexpected(const support::RunResult& result, const Scene& scene);

/// Joined, "a\nb\n".
std::string lines(const std::vector<std::string>& texts);

}  // namespace sluice::faults
