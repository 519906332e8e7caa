// SPDX-License-Identifier: MIT
#include "api/arguments.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "api/configuration.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::api {
namespace {

constexpr std::int64_t kAny = -1;
constexpr std::int64_t kAlignmentMax = 1 << 16;

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

bool is_float(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

std::string extent(std::int64_t expected) {
  return expected == kAny ? "any" : fmt::format("{}", expected);
}

bool on_host(const engine::EngineConfig& config) noexcept {
  return config.options.device == Device::cpu;
}

Status check_device(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view) {
  if (view.device == config.options.device) return {};
  return invalid(fmt::format("{} is in {} memory, expected {} memory (the communicator's device)",
                             name, to_string(view.device), to_string(config.options.device)));
}

/// Dimensions, place and memory of a tensor [rows, columns] or [rows]; kAny leaves rows open.
Status check_tensor(const engine::EngineConfig& config, const char* name,
                    const ConstTensorView& view, int dims, std::int64_t rows,
                    std::int64_t columns) {
  if (!view.given()) return invalid(fmt::format("{} is not given", name));
  if (view.dims != dims) {
    return invalid(fmt::format("{} has {} dimensions, expected {}", name, view.dims, dims));
  }
  if (Status status = check_device(config, name, view); !status.ok()) return status;
  if (view.shape[0] < 0 || (rows != kAny && view.shape[0] != rows) ||
      (dims == 2 && view.shape[1] != columns)) {
    return invalid(dims == 1 ? fmt::format("{} has shape [{}], expected [{}]", name, view.shape[0],
                                           extent(rows))
                             : fmt::format("{} has shape [{}, {}], expected [{}, {}]", name,
                                           view.shape[0], view.shape[1], extent(rows), columns));
  }
  if (view.data == nullptr && view.shape[0] > 0) {
    return invalid(fmt::format("{} has {} rows and no memory (null data)", name, view.shape[0]));
  }
  return {};
}

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

Status check_dtype(const char* name, const ConstTensorView& view, bool fits, const char* expected) {
  if (fits) return {};
  return invalid(
      fmt::format("{} has dtype {}, expected {}", name, to_string(view.dtype), expected));
}

Status check_innermost(const char* name, const ConstTensorView& view) {
  const std::int64_t stride = view.strides[static_cast<std::size_t>(view.dims) - 1];
  if (stride == 1) return {};
  return invalid(fmt::format("{} has innermost stride {}, expected 1", name, stride));
}

Status check_rows(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                  std::int64_t rows) {
  const std::int64_t hidden = config.shape.hidden;
  if (Status status = check_tensor(config, name, view, 2, rows, hidden); !status.ok())
    return status;
  if (Status status = check_dtype(name, view, is_float(view.dtype), "bf16, f16 or f32");
      !status.ok()) {
    return status;
  }
  return check_innermost(name, view);
}

Status check_f32(const engine::EngineConfig& config, const char* name, const ConstTensorView& view,
                 int dims, std::int64_t rows, std::int64_t columns) {
  if (Status status = check_tensor(config, name, view, dims, rows, columns); !status.ok())
    return status;
  return check_dtype(name, view, view.dtype == DType::f32, "f32");
}

Status check_tokens(const engine::EngineConfig& config, std::int64_t tokens) {
  if (tokens <= config.tokens_max) return {};
  return invalid(fmt::format("{} tokens, expected at most {} ({})", tokens, config.tokens_max,
                             config.throughput() ? "max_tokens" : "slot_tokens of mode latency"));
}

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

Status check_placement(const engine::EngineConfig& config, const DispatchOptions& options,
                       routing::RowPlacement& placement) {
  placement.layout = options.layout.value_or(config.options.layout);
  placement.alignment = options.expert_alignment;
  placement.capacity = options.capacity;
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

/// Whether the handle was made by this rank of a communicator of this shape. What lies on a GPU is
/// checked there.
Status check_handle(const engine::EngineConfig& config, const Handle& handle) {
  if (!handle.given()) return invalid("the handle is not given");
  if (handle.device() != config.options.device) {
    return invalid(fmt::format("the handle is in {} memory, expected {} memory",
                               to_string(handle.device()), to_string(config.options.device)));
  }
  if (!on_host(config)) return check_handle_memory(config, handle);
  if (!handle.valid()) {
    return invalid(
        fmt::format("the handle ({} bytes at {}) is not a filled handle of {} bytes, aligned "
                    "to 64",
                    handle.bytes(), fmt::ptr(handle.data()), handle_layout(config).bytes));
  }
  const auto& header = *static_cast<const window::HandleHeader*>(handle.data());
  if (header.fingerprint != config.fingerprint || header.rank != config.rank) {
    return invalid(
        fmt::format("the handle is foreign: it is of rank {} and shape {:#x}, expected rank "
                    "{} and shape {:#x}",
                    header.rank, header.fingerprint, config.rank, config.fingerprint));
  }
  return {};
}

/// What the host knows of a handle: all of it, or what the call says itself.
window::HandleHeader known_header(const engine::EngineConfig& config, const Handle& handle) {
  if (on_host(config)) return *static_cast<const window::HandleHeader*>(handle.data());
  window::HandleHeader header;
  header.local_experts = config.local_experts();
  header.tokens = kAny;
  header.rows = kAny;
  return header;
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
                    const ConstTensorView& topk_weights, const DispatchOptions& options,
                    engine::DispatchSend& send) {
  Status status = check_routing(config, topk_ids, topk_weights, options.mask);
  if (status.ok()) status = check_placement(config, options, send.placement);
  if (status.ok()) status = check_codec(config, options, send.codec);
  send.topk_ids = topk_ids;
  send.topk_weights = topk_weights;
  send.mask = options.mask;
  return status;
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
  if (send.reduce > Reduce::single) {
    return invalid(
        fmt::format("reduce = {}, expected rank or single", static_cast<int>(send.reduce)));
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

Status check_plan(const engine::EngineConfig& config, ConstTensorView topk_ids,
                  ConstTensorView topk_weights, const DispatchOptions& options,
                  engine::DispatchSend& send) {
  Status status = check_routes(config, topk_ids, topk_weights, options, send);
  if (status.ok() && options.scales.given()) {
    status = invalid("options.scales are given, expected none: a plan has no rows");
  }
  if (!status.ok()) return refuse(send, std::move(status));
  send.rows = false;
  return {};
}

Status check_dispatch(const engine::EngineConfig& config, ConstTensorView x,
                      ConstTensorView topk_ids, ConstTensorView topk_weights,
                      const DispatchOptions& options, engine::DispatchSend& send) {
  Status status = check_routes(config, topk_ids, topk_weights, options, send);
  if (status.ok()) status = check_x(config, x, topk_ids.shape[0], options.scales, send);
  return status.ok() ? status : refuse(send, std::move(status));
}

Status check_cached_dispatch(const engine::EngineConfig& config, ConstTensorView x,
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
    status = check_placement(config, options, send.placement);
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

Status check_combine(const engine::EngineConfig& config, ConstTensorView y, const Handle& handle,
                     const CombineOptions& options, engine::CombineSend& send) {
  const auto refused = [&send](Status status) {
    send.refused = true;
    return status;
  };
  send.reduce = options.reduce.value_or(config.options.reduce);
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
                             bool row_weights_sent, const ConstTensorView& y, TensorView out,
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
