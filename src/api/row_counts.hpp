// SPDX-License-Identifier: MIT
#pragma once

#include "sluice/communicator.hpp"

namespace sluice::api {

/// What the CPU engine has received, as DispatchOutputs::row_counts says; if given. Without a handle, zeros.
void write_row_counts(const Received& received, int local_experts, const TensorView& row_counts);

}  // namespace sluice::api
