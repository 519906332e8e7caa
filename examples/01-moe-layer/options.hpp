// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "model.hpp"

namespace moe {

struct Options {
  ModelShape model;
  std::string text;     ///< File to read; the default is set by the build.
  int ranks = 4;        ///< Processes, when this program starts them itself.
  int tokens = 512;     ///< Of one step, over all ranks.
  int steps = 4;        ///< Each takes the next tokens of the text.
  int repetitions = 3;  ///< Of every dispatch and combine, for the table of latencies.
  std::string mode = "automatic";
  std::string layout = "expert_major";
  bool help = false;
};

/// Returns false, and says why in `error`, when the arguments make no sense.
bool parse_options(const std::vector<std::string>& arguments, Options& options, std::string& error);
std::string usage();

}  // namespace moe
