// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace sluice::engine::cpu {

/// Whether rows of one operation are written past the caches: when there are so many that they
/// would be evicted before they are read, a store that reads its line first only costs bandwidth.
/// Measured with 4 ranks on 2 cores (docs/performance/cpu-engine.md).
constexpr bool worth_streaming(std::size_t bytes) noexcept {
  return bytes > (std::size_t{4} << 20);
}

}  // namespace sluice::engine::cpu
