// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "compare.hpp"
#include "options.hpp"
#include "stack.hpp"

namespace moe {

/// Says on standard output how far the program is, with the time since the start.
class Progress {
 public:
  explicit Progress(bool speaks);
  /// A line that replaces the last one on a terminal; elsewhere only every tenth part is written.
  void at(const std::string& what, int done, int total);
  void done(const std::string& what);

 private:
  double seconds() const;

  bool speaks_;
  bool terminal_;
  int last_tenth_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// A run over some number of ranks, gathered.
struct GatheredRun {
  int ranks = 0;
  std::uint64_t hash = 0;
  std::vector<std::vector<Bf16>> updates;  ///< Per layer, tokens in order.
  std::vector<LayerTimes> times;           ///< Per layer, of all ranks.
};

void print_header(const Options& options, std::size_t text_tokens);
void print_latencies(const Options& options, const GatheredRun& run);
/// Prints hashes and deviations and the closing verdict; returns whether all is well.
bool print_verdict(const Reference& reference, const std::vector<GatheredRun>& runs);

}  // namespace moe
