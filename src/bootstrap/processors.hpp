// SPDX-License-Identifier: MIT
#pragma once

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Collective. How many processors this rank has of those that it may use, if ranks of the machine that may use the same ones
/// share them evenly, and quotas of control groups likewise; 0: less than one. Not known: what else runs there.
Result<int> processors_of_rank(Group& group, base::Deadline deadline);

}  // namespace sluice::bootstrap
