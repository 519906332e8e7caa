// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

namespace sluice::bench {

/// Order statistics of one series. A quantile is the smallest sample that at least that share of
/// the samples does not exceed.
struct Summary {
  double min = 0.0;
  double p50 = 0.0;
  double p99 = 0.0;
  double max = 0.0;

  static Summary of(std::vector<double> samples);
};

}  // namespace sluice::bench
