// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "transport/network.hpp"

namespace sluice::support {

/// What befalls the network, and the threads that use it, of worlds of threads made while this lives.
/// Asked by all progress threads.
struct NetworkScript {
  /// A chunk from one rank to another is lost without a word, as on a cut line.
  std::function<bool(int from, int to)> swallows{};
  /// How long a chunk is on its way before the network reads it, and brings it at once.
  std::function<std::chrono::milliseconds(int from, int to, std::uint32_t bytes)> delays{};
  /// A peer that this rank's endpoint reports as lost, or -1. Reported once.
  std::function<int(int rank)> loses{};
  /// Whether this rank's progress thread stands still: asked until it does not.
  std::function<bool(int rank)> stalls{};
  /// Whether it finds no memory left.
  std::function<bool(int rank)> exhausts{};
  /// Whether the system has no progress thread for this rank.
  std::function<bool(int rank)> has_no_thread{};
};

class ScriptedNetwork {
 public:
  /// Over a network in memory that reads what is sent as late as it may.
  explicit ScriptedNetwork(NetworkScript script);
  ~ScriptedNetwork();
  ScriptedNetwork(const ScriptedNetwork&) = delete;
  ScriptedNetwork& operator=(const ScriptedNetwork&) = delete;
};

}  // namespace sluice::support
