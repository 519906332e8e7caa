// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sluice::base {

/// Where a counter begins that wraps around at 32 bits and of which only equality or differences count: so every run of every
/// test sees it wrap, not only a process that has lived for days. (As Linux does with its jiffies.)
inline constexpr std::uint32_t kNearWrap = 0xFFFF'FFF0;

}  // namespace sluice::base
