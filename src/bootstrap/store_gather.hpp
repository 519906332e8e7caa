// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"
#include "store/store.hpp"

namespace sluice::bootstrap {

/// Gathers one blob of every rank through a store; `gather`: a number that it has there, the same on all ranks.
Result<std::vector<std::string>> gather_through(store::Store& store, int gather, int rank, int size,
                                                std::string_view blob, base::Deadline deadline);

}  // namespace sluice::bootstrap
