// SPDX-License-Identifier: MIT
#include "gpu_options.hpp"

#include <array>
#include <cstddef>

namespace moe {
namespace {

constexpr std::array kLayouts = {"expert_slab", "expert_major", "rank_major"};

bool check_layout(const std::string& layout, std::string& error) {
  error = "--layout is '" + layout + "', expected one of:";
  for (const char* const known : kLayouts) {
    if (layout == known) return true;
    error += std::string(" ") + known;
  }
  return false;
}

}  // namespace

bool parse_gpu_options(const std::vector<std::string>& arguments, GpuOptions& options,
                       std::string& error) {
  // Those of example 01 are left to it: all of them have a value, but for --help.
  std::vector<std::string> common;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--graph") {
      options.graph = true;
      continue;
    }
    const bool has_value = i + 1 < arguments.size() && name != "--help" && name != "-h";
    if (name == "--layout" && has_value) {
      options.layout = arguments[++i];
      if (!check_layout(options.layout, error)) return false;
      continue;
    }
    common.push_back(name);
    if (has_value) common.push_back(arguments[++i]);
  }
  options.common.ranks = 0;
  if (!parse_options(common, options.common, error)) return false;
  return options.common.ranks == 0 || check_ranks(options, options.common.ranks, error);
}

bool check_ranks(const GpuOptions& options, int ranks, std::string& error) {
  if (ranks > kRanksMax) {
    error = "--ranks is " + std::to_string(ranks) + ", expected at most " +
            std::to_string(kRanksMax) + " on GPUs";
    return false;
  }
  const int tokens = options.common.tokens;
  if (options.common.mode != "latency" || tokens <= ranks * kTokensPerRankMax) return true;
  error = "--tokens is " + std::to_string(tokens) + " over " + std::to_string(ranks) +
          (ranks == 1 ? " rank" : " ranks") + ", expected at most " +
          std::to_string(kTokensPerRankMax) + " per rank on GPUs in mode latency";
  return false;
}

std::string gpu_usage() {
  return "usage: moe_layer_gpu [options]\n\n"
         "Example 01 on GPUs: rank r uses GPU r mod the number of GPUs.\n\n"
         "  --graph                 a CUDA graph per layer, instead of kernel by kernel\n"
         "  --layout LAYOUT         expert_slab, expert_major or rank_major (expert_slab)\n"
         "  --ranks N               as below (one per GPU, at most 16)\n\n"
         "The other options are those of example 01:\n\n" +
         usage();
}

}  // namespace moe
