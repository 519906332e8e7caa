// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "api/arguments.hpp"
#include "api/checks.hpp"
#include "api/configuration.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::api {
namespace {

constexpr std::int64_t kAlignmentMax = 1 << 16;

Status check_routing(const engine::EngineConfig& config, const ConstTensorView& ids,
                     const ConstTensorView& weights, const ConstTensorView& mask) {
  const std::int64_t top_k = config.shape.top_k;
  if (Status status = check_tensor(config, "topk_ids", ids, 2, kAny, top_k); !status.ok())
    return status;
  if (Status status = check_dtype("topk_ids", ids,
                                  ids.dtype == DType::i32 || ids.dtype == DType::i64, "i32 or i64");
      !status.ok()) {
    return status;
  }
  const std::int64_t tokens = ids.shape[0];
  if (Status status = check_tokens(config, tokens); !status.ok()) return status;
  if (weights.given()) {
    if (Status status = check_f32(config, "topk_weights", weights, 2, tokens, top_k);
        !status.ok()) {
      return status;
    }
  }
  if (mask.given()) {
    Status status = check_tensor(config, "mask", mask, mask.dims == 2 ? 2 : 1, tokens, top_k);
    if (status.ok()) status = check_dtype("mask", mask, mask.dtype == DType::u8, "u8");
    if (!status.ok()) return status;
  }
  return {};
}

Status check_placement(const engine::EngineConfig& config, std::int64_t capacity,
                       const DispatchOptions& options, routing::RowPlacement& placement) {
  placement.layout = options.layout.value_or(config.options.layout);
  placement.alignment = options.expert_alignment;
  placement.capacity = capacity;
  if (placement.layout > Layout::expert_slab) {
    return invalid(fmt::format("layout = {}, expected rank_major, expert_major or expert_slab",
                               static_cast<int>(placement.layout)));
  }
  if (placement.alignment < 1 || placement.alignment > kAlignmentMax) {
    return invalid(
        fmt::format("expert_alignment = {}, expected 1 to {}", placement.alignment, kAlignmentMax));
  }
  if (placement.capacity < 0) {
    return invalid(
        fmt::format("capacity = {}, expected 0 (worst case) or more", placement.capacity));
  }
  constexpr std::int64_t kRowsMax = std::numeric_limits<std::int32_t>::max();
  const std::int64_t experts = config.map.max_local_experts();
  if (placement.layout == Layout::expert_slab) {
    if (placement.capacity == 0) {
      placement.capacity = std::int64_t{config.ranks} * config.shape.max_tokens;
    }
    if (placement.capacity > kRowsMax / experts) {
      return invalid(
          fmt::format("{} local experts x {} slab rows, expected at most {} rows; set "
                      "options.capacity",
                      experts, placement.capacity, kRowsMax));
    }
  }
  const std::int64_t rows = std::int64_t{config.ranks} * config.tokens_max *
                            std::min<std::int64_t>(config.shape.top_k, experts);
  if (rows + experts * (placement.alignment - 1) > kRowsMax) {
    return invalid(fmt::format("up to {} rows aligned to {}, expected at most {} in all", rows,
                               placement.alignment, kRowsMax));
  }
  return {};
}

Status check_codec(const engine::EngineConfig& config, const DispatchOptions& options,
                   Codec& codec) {
  codec = options.codec.value_or(config.options.dispatch_codec);
  if (!codec::valid(codec)) {
    return invalid(
        fmt::format("codec (kind {}, scale form {}, group {}) is no codec, expected bf16, "
                    "f16, f32, or fp8 with a group of 32, 64, 128 or 256",
                    static_cast<int>(codec.kind), static_cast<int>(codec.scale_form), codec.group));
  }
  const std::size_t bytes =
      codec::row_bytes(codec, config.shape.hidden) + codec::scale_bytes(codec, config.shape.hidden);
  if (bytes > config.window.dispatch_row_bytes) {
    return invalid(
        fmt::format("codec {} needs records of {} bytes, expected at most {} (those of the "
                    "communicator's dispatch_codec {})",
                    to_string(codec.kind), bytes, config.window.dispatch_row_bytes,
                    to_string(config.options.dispatch_codec.kind)));
  }
  return {};
}

/// x, whose dtype says whether it is encoded already, and its scales. send.codec is set.
Status check_x(const engine::EngineConfig& config, const ConstTensorView& x, std::int64_t tokens,
               const ConstTensorView& scales, engine::DispatchSend& send) {
  const Codec& codec = send.codec;
  const std::int64_t hidden = config.shape.hidden;
  if (!scales.given()) {
    if (x.dtype == DType::e4m3) {
      return invalid("x has dtype e4m3 and options.scales are not given, expected its scales");
    }
    if (Status status = check_rows(config, "x", x, tokens); !status.ok()) return status;
  } else {
    if (codec.kind != CodecKind::fp8) {
      return invalid(fmt::format("options.scales are given and the codec is {}, expected fp8",
                                 to_string(codec.kind)));
    }
    Status status = check_tensor(config, "x", x, 2, tokens, hidden);
    if (status.ok()) {
      status = check_dtype("x", x, x.dtype == DType::e4m3, "e4m3, since options.scales are given");
    }
    if (status.ok()) status = check_innermost("x", x);
    const auto words =
        static_cast<std::int64_t>(codec::scale_bytes(codec, config.shape.hidden) / 4);
    if (status.ok()) {
      status = check_tensor(config, "options.scales", scales, 2, x.shape[0], words);
    }
    if (status.ok() && reinterpret_cast<std::uintptr_t>(scales.data) % 4 != 0) {
      status = invalid(
          fmt::format("options.scales lie at {}, expected a multiple of 4", fmt::ptr(scales.data)));
    }
    const bool packed = codec.scale_form == ScaleForm::ue8m0;
    if (status.ok()) {
      status =
          check_dtype("options.scales", scales, scales.dtype == (packed ? DType::i32 : DType::f32),
                      packed ? "i32 (ue8m0)" : "f32");
    }
    if (!status.ok()) return status;
  }
  send.x = x;
  send.scales = scales;
  return {};
}

Status refuse(engine::DispatchSend& send, Status status) {
  engine::DispatchSend refusal;
  refusal.refused = true;
  refusal.timeout = send.timeout;
  refusal.whole = send.whole;
  refusal.stream = send.stream;
  send = refusal;
  return status;
}

/// All of a dispatch but its rows.
Status check_routes(const engine::EngineConfig& config, const ConstTensorView& topk_ids,
                    const ConstTensorView& topk_weights, std::int64_t capacity,
                    const DispatchOptions& options, engine::DispatchSend& send) {
  Status status = check_routing(config, topk_ids, topk_weights, options.mask);
  if (status.ok()) status = check_placement(config, capacity, options, send.placement);
  if (status.ok()) status = check_codec(config, options, send.codec);
  send.topk_ids = topk_ids;
  send.topk_weights = topk_weights;
  send.mask = options.mask;
  return status;
}

}  // namespace

Status check_plan(const engine::EngineConfig& config, const ConstTensorView& topk_ids,
                  const ConstTensorView& topk_weights, const DispatchOptions& options,
                  engine::DispatchSend& send) {
  Status status = check_routes(config, topk_ids, topk_weights, options.capacity, options, send);
  if (status.ok() && options.scales.given()) {
    status = invalid("options.scales are given, expected none: a plan has no rows");
  }
  if (!status.ok()) return refuse(send, std::move(status));
  send.rows = false;
  return {};
}

Status check_dispatch(const engine::EngineConfig& config, const ConstTensorView& x,
                      const ConstTensorView& topk_ids, const ConstTensorView& topk_weights,
                      std::int64_t capacity, const DispatchOptions& options,
                      engine::DispatchSend& send) {
  Status status = check_routes(config, topk_ids, topk_weights, capacity, options, send);
  if (status.ok()) status = check_x(config, x, topk_ids.shape[0], options.scales, send);
  return status.ok() ? status : refuse(send, std::move(status));
}

Status check_cached_dispatch(const engine::EngineConfig& config, const ConstTensorView& x,
                             const Handle& cached, const DispatchOptions& options,
                             engine::DispatchSend& send) {
  if (Status status = check_handle(config, cached); !status.ok()) {
    return refuse(send, std::move(status));
  }
  const window::HandleHeader header = known_header(config, cached);
  const Layout layout = on_host(config) ? static_cast<Layout>(header.layout)
                                        : options.layout.value_or(config.options.layout);
  Status status;
  if (header.refused != 0) {
    status = {StatusCode::failed_precondition, "the handle is of a refused dispatch"};
  } else if (options.layout && *options.layout != layout) {
    status = invalid(fmt::format("layout = {}, expected the handle's {}",
                                 to_string(*options.layout), to_string(layout)));
  } else if (options.mask.given()) {
    status = invalid("mask is given, expected none: the routing is the handle's");
  }
  if (status.ok()) status = check_codec(config, options, send.codec);
  if (status.ok()) status = check_x(config, x, header.tokens, options.scales, send);
  if (status.ok()) status = check_tokens(config, x.shape[0]);
  if (!status.ok()) return refuse(send, std::move(status));
  send.cached = cached;
  if (!on_host(config)) {
    status = check_placement(config, options.capacity, options, send.placement);
    return status.ok() ? status : refuse(send, std::move(status));
  }
  send.placement = {layout, header.alignment, header.capacity};
  return {};
}

Status check_handle_memory(const engine::EngineConfig& config, const Handle& memory) {
  const std::size_t bytes = handle_layout(config).bytes;
  if (memory.device() != config.options.device) {
    return invalid(fmt::format("memory for the handle is on device {}, expected {}",
                               to_string(memory.device()), to_string(config.options.device)));
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory.data()) % window::kLineBytes == 0;
  if (memory.bytes() >= bytes && aligned) return {};
  return invalid(
      fmt::format("memory for the handle: {} bytes at {}, expected at least {} bytes aligned "
                  "to {}",
                  memory.bytes(), fmt::ptr(memory.data()), bytes, window::kLineBytes));
}

Status check_row_counts(const engine::EngineConfig& config, const TensorView& row_counts) {
  const std::int64_t words = config.local_experts() + 2;
  if (!row_counts.given()) return {};
  if (row_counts.dims != 1 || row_counts.shape[0] < words || row_counts.strides[0] != 1) {
    return invalid(fmt::format(
        "row_counts has {} dimensions, {} elements and stride {}, expected 1 dimension, at "
        "least {} elements (local experts + 2) and stride 1",
        row_counts.dims, row_counts.shape[0], row_counts.strides[0], words));
  }
  const auto at = reinterpret_cast<std::uintptr_t>(row_counts.data);
  if (at == 0 || at % alignof(std::int64_t) != 0) {
    return invalid(
        fmt::format("row_counts lies at {}, expected a multiple of 8", fmt::ptr(row_counts.data)));
  }
  return check_dtype("row_counts", row_counts, row_counts.dtype == DType::i64, "i64");
}

}  // namespace sluice::api
