// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "api/arguments.hpp"
#include "api/checks.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::api {
namespace {

/// Bytes of a tensor without gaps; 0 for one with gaps, which may lie between another's rows.
std::size_t dense_bytes(const ConstTensorView& view) noexcept {
  std::int64_t elements = 1;
  for (auto i = static_cast<std::size_t>(view.dims); i-- > 0;) {
    if (view.strides[i] != elements) return 0;
    elements *= view.shape[i];
  }
  return static_cast<std::size_t>(elements) * size_of(view.dtype);
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b) noexcept {
  if (dense_bytes(a) == 0 || dense_bytes(b) == 0) return false;
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  return first < second + dense_bytes(b) && second < first + dense_bytes(a);
}

Status check_y(const engine::EngineConfig& config, const ConstTensorView& y,
               const window::HandleHeader& handle) {
  const std::int64_t hidden = config.shape.hidden;
  if (handle.rows == 0 && !y.given()) return {};
  const bool slabs =
      on_host(config) ? static_cast<Layout>(handle.layout) == Layout::expert_slab : y.dims == 3;
  if (slabs) {
    if (!y.given()) return invalid("y is not given");
    if (y.dims != 3 || y.shape[0] != handle.local_experts ||
        (on_host(config) && y.shape[1] != handle.capacity) || y.shape[2] != hidden) {
      return invalid(fmt::format(
          "y has {} dimensions [{}, {}, {}], expected the dispatch's [{}, {}, {}]", y.dims,
          y.shape[0], y.shape[1], y.shape[2], handle.local_experts, handle.capacity, hidden));
    }
    if (Status status = check_device(config, "y", y); !status.ok()) return status;
    const bool any = on_host(config) ? handle.rows > 0 : y.shape[0] > 0 && y.shape[1] > 0;
    if (y.data == nullptr && any) return invalid("y has no memory (null data)");
    if (Status status = check_dtype("y", y, is_float(y.dtype), "bf16, f16 or f32"); !status.ok()) {
      return status;
    }
    return check_innermost("y", y);
  }
  if (Status status = check_rows(config, "y", y, kAny); !status.ok()) return status;
  if (y.shape[0] < handle.rows) {
    return invalid(
        fmt::format("y has {} rows, expected at least the dispatch's {}", y.shape[0], handle.rows));
  }
  return {};
}

Status check_combine_options(const engine::EngineConfig& config, const CombineOptions& options,
                             const window::HandleHeader& handle, engine::CombineSend& send) {
  const auto layout = static_cast<Layout>(handle.layout);
  if (send.reduce > Reduce::node) {
    return invalid(
        fmt::format("reduce = {}, expected rank, single or node", static_cast<int>(send.reduce)));
  }
  if (send.reduce == Reduce::single && !config.options.permit_single) {
    return invalid("reduce = single, expected a communicator created with permit_single");
  }
  if (on_host(config) && send.reduce == Reduce::single && layout == Layout::rank_major) {
    return invalid(
        "reduce = single with a rank_major handle, expected an expert layout (rank_major "
        "rows are partial sums already)");
  }
  if (send.codec > CodecKind::f32 ||
      codec::row_bytes({send.codec, ScaleForm::f32, 128}, config.shape.hidden) >
          config.window.combine_row_bytes) {
    return invalid(
        fmt::format("combine codec {}, expected bf16, f16 or f32 no larger than the "
                    "communicator's combine_codec {}",
                    to_string(send.codec), to_string(config.options.combine_codec)));
  }
  if (options.weights.given()) {
    if (Status status =
            check_f32(config, "weights", options.weights, 2, handle.tokens, config.shape.top_k);
        !status.ok()) {
      return status;
    }
  }
  if (options.row_weights.given()) {
    if (on_host(config) && layout != Layout::rank_major) {
      return invalid(
          fmt::format("row_weights with layout {}, expected rank_major", to_string(layout)));
    }
    if (Status status =
            check_f32(config, "row_weights", options.row_weights, 2, kAny, config.shape.top_k);
        !status.ok()) {
      return status;
    }
    if (options.row_weights.shape[0] < handle.rows) {
      return invalid(fmt::format("row_weights has {} rows, expected at least {}",
                                 options.row_weights.shape[0], handle.rows));
    }
  }
  return {};
}

}  // namespace

Status check_combine(const engine::EngineConfig& config, const ConstTensorView& y,
                     const Handle& handle, const CombineOptions& options,
                     engine::CombineSend& send) {
  const auto refused = [&send](Status status) {
    send.refused = true;
    return status;
  };
  send.reduce = options.reduce.value_or(config.reduce);
  send.codec = options.codec.value_or(config.options.combine_codec);
  if (Status status = check_handle(config, handle); !status.ok()) return refused(std::move(status));
  const window::HandleHeader header = known_header(config, handle);
  send.handle = handle;
  if (header.refused != 0) {
    return refused({StatusCode::failed_precondition,
                    "the handle is of a refused dispatch: y is ignored and answers nothing"});
  }
  Status status = check_y(config, y, header);
  if (status.ok()) status = check_combine_options(config, options, header, send);
  if (!status.ok()) return refused(std::move(status));
  send.y = y;
  send.weights = options.weights;
  send.row_weights = options.row_weights;
  send.plain_sum = options.plain_sum &&
                   (!on_host(config) || static_cast<Layout>(header.layout) != Layout::rank_major);
  return {};
}

Status check_combine_outputs(const engine::EngineConfig& config, std::int64_t tokens,
                             bool row_weights_sent, const ConstTensorView& y, const TensorView& out,
                             const CombineOutputs& outputs) {
  if (Status status = check_rows(config, "out", out, tokens); !status.ok()) return status;
  if (tokens == kAny) tokens = out.shape[0];
  if (Status status = check_tokens(config, tokens); !status.ok()) return status;
  if (overlap(y, out)) {
    return invalid("out overlaps y, expected memory of its own: y is read while out is written");
  }
  if (outputs.biases.size() > static_cast<std::size_t>(kMaxBiases)) {
    return invalid(
        fmt::format("{} biases, expected at most {}", outputs.biases.size(), kMaxBiases));
  }
  if (outputs.shared_results.size() > static_cast<std::size_t>(kMaxSharedResults)) {
    return invalid(fmt::format("{} shared results, expected at most {}",
                               outputs.shared_results.size(), kMaxSharedResults));
  }
  for (const ConstTensorView& bias : outputs.biases) {
    if (Status status = check_rows(config, "bias", bias, tokens); !status.ok()) return status;
  }
  for (const ConstTensorView& shared : outputs.shared_results) {
    if (Status status = check_rows(config, "shared result", shared, tokens); !status.ok()) {
      return status;
    }
  }
  if (outputs.surviving_weight.given()) {
    if (Status status =
            check_f32(config, "surviving_weight", outputs.surviving_weight, 1, tokens, 0);
        !status.ok()) {
      return status;
    }
  }
  if (outputs.weights_home.given()) {
    if (!row_weights_sent) {
      return invalid("weights_home is given, expected options.row_weights with it");
    }
    return check_f32(config, "weights_home", outputs.weights_home, 2, tokens, config.shape.top_k);
  }
  return {};
}

}  // namespace sluice::api
