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

/// What is known when it is sent. Of a call that is refused, no more than peers need.
DispatchArgs dispatch_args(const Known& known, const DispatchSend& request);
/// Whether rows of x are records as they travel: encoded, with scales behind them that are whole packets.
bool whole_records(const DispatchSend& request, int hidden) noexcept;
CombineArgs combine_args(const Known& known, const CombineSend& request);

/// Of the handle that a dispatch makes.
window::HandleHeader header_of(const Known& known, const DispatchArgs& args);
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
