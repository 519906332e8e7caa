// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model.hpp"

namespace moe {

/// The same stack in one process, by plain loops and without Sluice.
struct Reference {
  std::vector<Bf16> final;                    ///< [tokens, hidden] after the last layer.
  std::vector<std::vector<Bf16>> updates;     ///< Per layer: what combine should return.
  std::vector<std::vector<float>> magnitude;  ///< Per layer: sum of |w_k y_k|, for the error bound.
};

Reference run_reference(const ModelShape& shape, const std::vector<std::int32_t>& tokens,
                        int threads, const std::function<void(int layer)>& progress);

}  // namespace moe
