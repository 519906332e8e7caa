// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "engine/cuda/kernels.hpp"
#include "engine/engine.hpp"
#include "engine/receive_buffers.hpp"

/// What kernels are told of a call.
namespace sluice::engine::cuda {

/// What is the same for all calls.
struct Known {
  const EngineConfig& config;
  const Geometry& geometry;
  const window::HandleLayout& handle_layout;
  bool by_node;  // Whether `reduce = node` makes a difference.
};

/// What is known when it is sent, in place of what is there. Of a call that is refused, no more than peers need.
void set_call(const Known& known, const DispatchSend& request, DispatchArgs& args);
void set_call(const Known& known, const CombineSend& request, CombineArgs& args);
/// Whether rows of x are records as they travel: encoded, with scales behind them that are whole packets.
bool whole_records(const DispatchSend& request, int hidden) noexcept;

/// The header of the handle that a dispatch makes.
void set_header(const Known& known, DispatchArgs& args);
/// Rows that a dispatch may bring at most.
std::int64_t rows_max(const Known& known, const routing::RowPlacement& placement) noexcept;
/// Where the rows of a dispatch go.
void set_rows(const Known& known, const DispatchSend& request, const Received& received,
              bool zero_padding, DispatchArgs& args);

/// Tokens of a combine that the host knows of when it does not know `out`.
int weights_tokens(const CombineSend& request) noexcept;
/// Where the sums of a combine go, and what is added.
void set_outputs(const TensorView& out, const CombineOutputs& outputs, CombineArgs& args);

}  // namespace sluice::engine::cuda
