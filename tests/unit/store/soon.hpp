// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "base/deadline.hpp"

namespace sluice::store {

/// For what happens at once, on however busy a machine.
inline base::Deadline soon() {
  return base::Deadline::after(std::chrono::seconds(60));
}

}  // namespace sluice::store
