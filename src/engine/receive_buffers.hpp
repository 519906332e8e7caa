// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include "engine/buffer_pool.hpp"
#include "routing/row_plan.hpp"
#include "sluice/communicator.hpp"

namespace sluice::engine {

/// What a dispatch's rows need.
struct RowsNeeded {
  routing::RowPlacement placement;
  int local_experts = 0;
  int hidden = 0;
  Codec codec;
  std::int64_t rows = 0;  // As numbered by the plan, capacity applied.
};

struct ReceiveBuffers {
  TensorView rows;
  TensorView scales;  // fp8 only
  std::shared_ptr<void> owner;
};

/// Takes the caller's tensors, or its allocator's memory, or the pool's. Refuses tensors whose
/// dtype, shape or strides do not fit, with what was expected and seen.
Result<ReceiveBuffers> resolve_buffers(const DispatchOutputs& outputs, const RowsNeeded& needed,
                                       BufferPool& pool);

}  // namespace sluice::engine
