// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

#include "base/deadline.hpp"

namespace sluice::bench {

/// What the command line gives in seconds.
inline std::chrono::nanoseconds duration_of(double seconds) noexcept {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}
inline base::Deadline deadline_of(double seconds) noexcept {
  return base::Deadline::after(duration_of(seconds));
}

}  // namespace sluice::bench
