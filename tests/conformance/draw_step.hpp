// SPDX-License-Identifier: MIT
#pragma once

#include "conformance/scenario.hpp"
#include "support/random.hpp"

namespace sluice::conformance {

/// A step whose every aspect is drawn: routing, tokens, masks, data types, buffers, flow, weights.
/// Layout, codec and reduce stay those of the communicator unless set in the result.
StepSpec draw_step(const Scenario& scenario, support::Random& random);

/// A communicator of 4 ranks and a small shape, with `steps` drawn steps.
Scenario drawn_scenario(std::uint64_t seed, int steps);

}  // namespace sluice::conformance
