// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "routing/row_plan.hpp"
#include "sluice/communicator.hpp"

namespace sluice::engine {

/// What a dispatch's rows need.
struct RowsNeeded {
  routing::RowPlacement placement;
  int local_experts = 0;
  int hidden = 0;
  Codec codec;
  std::int64_t rows = 0;  // As numbered by the plan, capacity applied; or the most there may be.
  Device device = Device::cpu;
};

/// Memory of at least so many bytes, or null.
using TakeBuffer = std::function<std::shared_ptr<void>(std::size_t bytes)>;

struct ReceiveBuffers {
  TensorView rows;
  TensorView scales;  // fp8 only
  std::shared_ptr<void> owner;
};

/// Takes the caller's tensors, or its allocator's memory, or what `take` gives. Refuses tensors whose
/// dtype, shape or strides do not fit, with what was expected and seen.
Result<ReceiveBuffers> resolve_buffers(const DispatchOutputs& outputs, const RowsNeeded& needed,
                                       const TakeBuffer& take);

}  // namespace sluice::engine
