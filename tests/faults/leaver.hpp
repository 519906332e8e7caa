// SPDX-License-Identifier: MIT
#pragma once

#include "faults/round.hpp"
#include "sluice/world.hpp"
#include "support/findings.hpp"

namespace sluice::faults {

/// One rank leaves after some rounds: at once it is missing, and nothing went wrong. A process's body.
void run_and_leave(const Terms& terms, World& world, support::Findings& findings);

}  // namespace sluice::faults
