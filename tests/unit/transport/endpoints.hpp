// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/memory_fabric.hpp"
#include "transport/transport.hpp"
#include "unit/transport/talker.hpp"

namespace sluice::transport {

/// One way to join ranks of this process, and how it is called.
struct Kind {
  std::string name;
  std::string provider;  // "memory", kAnyTcp, or libfabric's
  SignalMode signals = SignalMode::immediate;
  int rails = 1;
  enum class Receivers : std::uint8_t { none, some, all };
  Receivers receivers =
      Receivers::none;  // Ranks with a thread that receives: every other one, or all.
  std::string address = "127.0.0.1";
};
inline constexpr const char* kAnyTcp = "any tcp";
std::vector<Kind> all_kinds();

/// A region of every rank, and its endpoint.
struct Joined {
  std::optional<MemoryFabric> fabric;
  std::vector<std::vector<std::byte>> memory;  // Region 0 of each rank.
  std::vector<std::unique_ptr<Endpoint>> endpoints;
};

/// What a rank's peers are given for its introduction.
using Introduce = std::function<std::string(const std::string& introduction)>;

/// Null, and `why_not`, where this machine does not have the provider.
std::unique_ptr<Joined> join(const Kind& kind, int ranks, std::size_t bytes, int window,
                             std::uint64_t seed, std::string& why_not,
                             const Introduce& introduce = {});

/// All ranks talk to each other, each in a thread of its own. How many messages each read wrong; -1: it
/// did not get all.
std::vector<std::int64_t> talk(Joined& joined, int messages, const Load& load = {});

}  // namespace sluice::transport
