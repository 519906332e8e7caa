// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "sluice/world.hpp"
#include "support/findings.hpp"

namespace sluice::support {

/// What one rank does. It must not use GoogleTest.
using RankBody = std::function<void(World& world, Findings& findings)>;

/// SLUICE_TEST_WATCHDOG_SECONDS, or 150.
std::chrono::seconds default_watchdog();

struct RunOptions {
  /// After this, what still runs is killed and reported (threads: the whole test is aborted).
  std::chrono::milliseconds watchdog = default_watchdog();
  /// Call World::leave at the end of every rank.
  bool leave = true;
  /// Processes end as programs do, which wait for what the library still does in the background: a thread that is stuck
  /// there is found by the watchdog.
  bool waits_at_end = false;
};

struct RunResult {
  std::vector<std::string> failures;  ///< "rank 2: ...", empty if all went well.
  std::vector<std::string> notes;     ///< One per rank.

  /// All failures as one text.
  std::string text() const;
};

/// Nodes of a world of `ranks`: SLUICE_TEST_NODE_SIZE ranks each, and what is left; one node if it is
/// not set.
std::vector<int> node_sizes(int ranks);

/// Runs `body` on `ranks` threads of this process over World::threads, on nodes of node_sizes(). What goes
/// between nodes goes through a wire with the weather that SLUICE_TEST_WIRE names, if it is set
/// (wired_network.hpp).
RunResult run_as_threads(int ranks, const RankBody& body, const RunOptions& options = {});
/// Runs `body` on `ranks` child processes, joined by a rendezvous of their own, or by a caller's store
/// (FileStore) if SLUICE_TEST_STORE is set. With SLUICE_TEST_NETNS each node has namespaces of its own, or the one
/// failure begins with "unavailable: no namespaces". The caller has no other thread: a child is a copy of its only one. A
/// child never returns to the caller.
RunResult run_as_processes(int ranks, const RankBody& body, const RunOptions& options = {});

using RunRanks = RunResult (*)(int ranks, const RankBody& body, const RunOptions& options);

}  // namespace sluice::support
