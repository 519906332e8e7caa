// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sluice::trace {

/// What a rank does within an operation; the same names on every engine.
enum class Phase : std::uint8_t {
  quantise,  // Encoding rows for the way.
  put,       // Storing rows and headers at peers, or staging them.
  count,     // Reading headers and numbering rows.
  wait,      // Waiting for peers.
  place,     // Moving received rows to where the user reads them.
  sum,       // Forming sums of rows.
};

}  // namespace sluice::trace
