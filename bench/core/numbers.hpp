// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sluice::bench {

/// A number as an index.
inline std::size_t index(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

inline std::int64_t whole(double number) {
  return std::llround(number);
}

}  // namespace sluice::bench
