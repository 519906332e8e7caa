// SPDX-License-Identifier: MIT
#include "gemm_result.hpp"

#include <algorithm>

#include "contestant.hpp"
#include "measure.hpp"
#include "summary.hpp"

namespace sluice::bench {
namespace {

double median(const Board& board, int series, int rank, bool in_time_only) {
  std::vector<double> kept;
  int iteration = 0;
  for (const double us : board.samples(rank, series)) {
    if (!in_time_only || !starts_late(rank, iteration)) kept.push_back(us);
    ++iteration;
  }
  return Summary::of(std::move(kept)).p50;
}

}  // namespace

Excess Excess::of(const std::vector<double>& alone_us, const std::vector<double>& part_us) {
  Excess worst;
  for (std::size_t rank = 0; rank < part_us.size(); ++rank) {
    const Excess seen{static_cast<int>(rank), alone_us[rank], part_us[rank]};
    if (rank == 0 || seen.percent() > worst.percent()) worst = seen;
  }
  return worst;
}

GemmResult GemmResult::of(const Board& board, int first, const GemmSize& size) {
  GemmResult result;
  result.size = size;
  for (const int operation : {kDispatch, kCombine}) {
    for (int part = 0; part < kGemmParts; ++part) {
      const int series = first + gemm_series(operation, static_cast<GemmPart>(part));
      for (int rank = 0; rank < board.ranks(); ++rank) {
        result.times[static_cast<std::size_t>(operation)]
            .us[static_cast<std::size_t>(part)]
            .push_back(median(board, series, rank, static_cast<GemmPart>(part) == GemmPart::late));
      }
    }
  }
  return result;
}

double GemmResult::tflops() const {
  const std::vector<double>& alone_us = times[kDispatch].of(GemmPart::alone);
  const double longest_us = *std::max_element(alone_us.begin(), alone_us.end());
  return longest_us > 0.0 ? 2.0 * size.m * size.n * size.k / longest_us * 1e-6 : 0.0;
}

double GemmResult::noise_percent() const {
  const std::vector<double>& after_dispatch = times[kDispatch].of(GemmPart::alone);
  const std::vector<double>& after_combine = times[kCombine].of(GemmPart::alone);
  return std::max(Excess::of(after_dispatch, after_combine).percent(),
                  Excess::of(after_combine, after_dispatch).percent());
}

}  // namespace sluice::bench
