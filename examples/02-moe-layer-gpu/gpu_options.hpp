// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace moe {

/// Tokens of one rank in latency mode, and ranks, that the CUDA engine takes at most.
inline constexpr int kTokensPerRankMax = 512;
inline constexpr int kRanksMax = 16;

struct GpuOptions {
  /// Those of example 01. ranks is 0 until it is known how many GPUs there are. layout is that
  /// of the CPU engine's run, which this one is compared with.
  Options common;
  std::string layout = "expert_slab";
  bool graph = false;  ///< One CUDA graph per layer, instead of kernel by kernel.
};

/// Returns false, and says why in `error`, when the arguments make no sense.
bool parse_gpu_options(const std::vector<std::string>& arguments, GpuOptions& options,
                       std::string& error);
/// Whether the CUDA engine takes so many ranks with so many tokens.
bool check_ranks(const GpuOptions& options, int ranks, std::string& error);
std::string gpu_usage();

}  // namespace moe
