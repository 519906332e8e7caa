// SPDX-License-Identifier: MIT
#include "summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice::bench {

Summary Summary::of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double share) {
    const double place = std::ceil(share * static_cast<double>(samples.size()));
    return samples[static_cast<std::size_t>(std::max(place, 1.0)) - 1];
  };
  return Summary{samples.front(), quantile(0.5), quantile(0.99), samples.back()};
}

}  // namespace sluice::bench
