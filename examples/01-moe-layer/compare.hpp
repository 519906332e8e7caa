// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "reference.hpp"

namespace moe {

/// How far the default reduction is from the reference.
struct Deviation {
  double worst = 0.0;           ///< Largest |difference|.
  double worst_of_bound = 0.0;  ///< Largest |difference| / bound; above 1 it is an error.
  std::int64_t beyond = 0;      ///< Elements beyond the bound.
};

/// The bound, element by element: 2^-8 (m + |a| + |b|) (1 + 2^-6), m = sum of |w_k y_k|.
///
/// A bf16 has 8 significant bits, so one rounding moves a value by at most 2^-8 of it. With
/// reduce = rank every rank's partial sum is rounded once to travel, together at most 2^-8 m; then
/// a and b, the two results, are each rounded once. All f32 arithmetic beside it (errors of 2^-24)
/// fits into the last factor.
Deviation compare_updates(const Reference& reference,
                          const std::vector<std::vector<Bf16>>& updates);

}  // namespace moe
