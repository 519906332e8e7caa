// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "engine/cuda/kernels.hpp"

namespace sluice::engine::cuda {

/// For a kernel that tells the host what a dispatch has brought, once its handle says so.
struct RowCountsArgs {
  const std::byte* handle = nullptr;
  window::HandleLayout handle_layout{1, 1, 1, 1};
  std::uint32_t handle_key = 0;
  bool drop = false;  // Nothing has come, whatever the handle says.
  int local_experts = 0;
  std::int64_t epoch = 0;
  std::int64_t* out = nullptr;  // [L + 2], as DispatchOutputs::row_counts; null: nobody asked
};

/// Both return a cudaError_t.
int launch_row_counts(const RowCountsArgs& args, const Launch& launch);
int load_row_counts_kernel();

}  // namespace sluice::engine::cuda
