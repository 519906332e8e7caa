// SPDX-License-Identifier: MIT
#include "compare.hpp"

#include <algorithm>
#include <cmath>

namespace moe {

Deviation compare_updates(const Reference& reference,
                          const std::vector<std::vector<Bf16>>& updates) {
  Deviation deviation;
  for (std::size_t layer = 0; layer < reference.updates.size(); ++layer) {
    for (std::size_t i = 0; i < reference.updates[layer].size(); ++i) {
      const double a = to_float(updates[layer][i]);
      const double b = to_float(reference.updates[layer][i]);
      const double magnitude = reference.magnitude[layer][i];
      const double bound = (magnitude + std::fabs(a) + std::fabs(b)) * (1.0 + 1.0 / 64.0) / 256.0;
      const double difference = std::fabs(a - b);
      // Written so that a NaN counts as beyond.
      if (!(difference <= bound)) ++deviation.beyond;
      deviation.worst = std::max(deviation.worst, difference);
      if (bound > 0.0) {
        deviation.worst_of_bound = std::max(deviation.worst_of_bound, difference / bound);
      }
    }
  }
  return deviation;
}

}  // namespace moe
