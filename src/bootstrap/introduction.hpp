// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/host_identity.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Gathers one blob of every rank, in rank order, before there is a mesh.
using Gather = std::function<Result<std::vector<std::string>>(std::string_view blob)>;

/// What every rank tells all others in the one gather that makes a world of processes.
struct Introduction {
  Status status;  // Not ok: this rank cannot join, and why.
  int rank = 0;
  int size = 0;
  HostIdentity host;
  std::string listener;  // Name of the abstract socket where it awaits higher ranks.
  std::string nonce;     // Rank 0's is the world's: connections must show it.
};

/// Gathers the introductions and checks them: every rank sees the same, so every rank returns the
/// same Status.
Result<std::vector<Introduction>> introduce(const Introduction& mine, const Gather& gather);

}  // namespace sluice::bootstrap
