// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "base/deadline.hpp"
#include "bootstrap/mesh.hpp"
#include "memory/shared_region.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Group::share over a mesh, in two exchanges: every rank brings its memory file (or why it has
/// none), then every rank says whether it could map all of them. What one rank lacks, all report.
Result<memory::SharedRegion> share_over(Mesh& mesh, std::size_t bytes, bool committed,
                                        base::Deadline deadline);

}  // namespace sluice::bootstrap
