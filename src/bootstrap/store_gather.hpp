// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"
#include "store/address.hpp"
#include "store/store.hpp"

namespace sluice::bootstrap {

/// Gathers one blob of every rank through a store, once per store.
Result<std::vector<std::string>> gather_through(store::Store& store, int rank, int size,
                                                std::string_view blob, base::Deadline deadline);

/// The same at an address where rank 0 serves a store for this one gather: there it returns only
/// when every rank has read all it needs, one is lost, or the deadline has passed.
Result<std::vector<std::string>> gather_at(const store::Address& address, int rank, int size,
                                           std::string_view blob, base::Deadline deadline);

}  // namespace sluice::bootstrap
