// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "reference/reference.hpp"

namespace sluice::fuzz {

/// Runs src/routing on the problem as the engines do, and compares every number with the reference.
/// Returns the first difference as a sentence, or nothing.
std::string compare_routing(const reference::DispatchProblem& problem);

}  // namespace sluice::fuzz
