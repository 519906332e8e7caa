// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/host_identity.hpp"
#include "sluice/status.hpp"
#include "sluice/store.hpp"

namespace sluice::bootstrap {

/// Collective. Joins ranks that share a caller's store, of one node or of several; then the store is
/// the world's for as long as it lasts. `host`: where this rank runs.
Result<std::unique_ptr<Group>> join_through(std::shared_ptr<Store> store, int rank, int size,
                                            base::Deadline deadline,
                                            const Result<HostIdentity>& host = this_host());

}  // namespace sluice::bootstrap
