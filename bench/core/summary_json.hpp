// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "summary.hpp"

namespace sluice::bench {

inline nlohmann::ordered_json summary_json(const Summary& summary) {
  return {{"min", summary.min}, {"p50", summary.p50}, {"p99", summary.p99}, {"max", summary.max}};
}

}  // namespace sluice::bench
