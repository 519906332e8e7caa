// SPDX-License-Identifier: MIT
#pragma once

#include "engine/engine.hpp"
#include "sluice/communicator.hpp"

/// What the host can see to be wrong with a call: every check says what, expected and seen. None of
/// them depends on other ranks.
namespace sluice::api {

/// Checks a dispatch and fills `send` with it. On failure `send` is a refusal. `capacity` stands for options.capacity.
Status check_dispatch(const engine::EngineConfig& config, const ConstTensorView& x,
                      const ConstTensorView& topk_ids, const ConstTensorView& topk_weights,
                      std::int64_t capacity, const DispatchOptions& options,
                      engine::DispatchSend& send);
/// Likewise with the routing of a handle.
Status check_cached_dispatch(const engine::EngineConfig& config, const ConstTensorView& x,
                             const Handle& cached, const DispatchOptions& options,
                             engine::DispatchSend& send);
/// A dispatch of routing only.
Status check_plan(const engine::EngineConfig& config, const ConstTensorView& topk_ids,
                  const ConstTensorView& topk_weights, const DispatchOptions& options,
                  engine::DispatchSend& send);
/// Memory that the caller gives for a handle.
Status check_handle_memory(const engine::EngineConfig& config, const Handle& memory);
/// DispatchOutputs::row_counts, if given.
Status check_row_counts(const engine::EngineConfig& config, const TensorView& row_counts);

/// Checks a combine's send half. A handle that is this communicator's is set even on failure: peers
/// answer its tokens.
Status check_combine(const engine::EngineConfig& config, const ConstTensorView& y,
                     const Handle& handle, const CombineOptions& options,
                     engine::CombineSend& send);
/// Checks a combine's receive half for `tokens` tokens; `out` stands for outputs.out.
Status check_combine_outputs(const engine::EngineConfig& config, std::int64_t tokens,
                             bool row_weights_sent, const ConstTensorView& y, const TensorView& out,
                             const CombineOutputs& outputs);

}  // namespace sluice::api
