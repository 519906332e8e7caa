// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "case.hpp"

namespace sluice::bench {

/// The routes of all ranks for one data set: ids and weights, [R, T, K]. Experts of one token are
/// distinct and every id is valid, so that a peer without Sluice's rules for duplicates can run it.
struct Routing {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// Whether the case's routing can give every token K distinct experts.
Status check_distribution(const Case& bench_case);

/// The same on every rank and in every process: a function of the case's seed, `set` and shape.
Routing make_routing(const Case& bench_case, int set);

}  // namespace sluice::bench
