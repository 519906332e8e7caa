// SPDX-License-Identifier: MIT
#include "engine/receive_buffers.hpp"

#include <fmt/format.h>

#include <utility>

#include "codec/row_kernels.hpp"
#include "window/window_layout.hpp"

namespace sluice::engine {
namespace {

std::string shape_text(const TensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.dims; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", view.shape[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

DType scale_dtype(const Codec& codec) noexcept {
  return codec.scale_form == ScaleForm::ue8m0 ? DType::i32 : DType::f32;
}

std::int64_t scale_columns(const RowsNeeded& needed) noexcept {
  return static_cast<std::int64_t>(codec::scale_bytes(needed.codec, needed.hidden) / 4);
}

bool slab(const RowsNeeded& needed) noexcept {
  return needed.placement.layout == Layout::expert_slab;
}

/// [rows, columns], or [L, slab_rows, columns] in expert_slab.
TensorView contiguous(void* data, DType dtype, const RowsNeeded& needed, std::int64_t columns) {
  TensorView view = slab(needed) ? TensorView(data, dtype, needed.local_experts,
                                              needed.placement.capacity, columns)
                                 : TensorView(data, dtype, needed.rows, columns);
  view.device = needed.device;
  return view;
}

Status check(const char* name, const TensorView& view, DType dtype, std::int64_t columns,
             const RowsNeeded& needed, bool innermost_contiguous) {
  const auto fail = [name](const std::string& what) {
    return Status(StatusCode::invalid_argument, fmt::format("{} {}", name, what));
  };
  if (view.dtype != dtype) {
    return fail(fmt::format("has dtype {}, expected {}", to_string(view.dtype), to_string(dtype)));
  }
  if (view.device != needed.device) {
    return fail(fmt::format("is in {} memory, expected {} memory", to_string(view.device),
                            to_string(needed.device)));
  }
  const int dims = slab(needed) ? 3 : 2;
  if (view.dims != dims) {
    return fail(fmt::format("has {} dimensions {}, expected {}", view.dims, shape_text(view),
                            slab(needed) ? "3: [L, slab_rows, columns]" : "2: [N, columns]"));
  }
  const auto last = static_cast<std::size_t>(dims) - 1;
  if (view.shape[last] != columns) {
    return fail(fmt::format("has {} columns, expected {}", view.shape[last], columns));
  }
  if (innermost_contiguous && view.strides[last] != 1) {
    return fail(fmt::format("has innermost stride {}, expected 1", view.strides[last]));
  }
  if (slab(needed)) {
    if (view.shape[0] != needed.local_experts || view.shape[1] != needed.placement.capacity) {
      return fail(fmt::format("has shape {}, expected [{}, {}, {}]", shape_text(view),
                              needed.local_experts, needed.placement.capacity, columns));
    }
  } else if (view.shape[0] < needed.rows) {
    return fail(
        fmt::format("holds {} rows, expected at least {} (a smaller options.capacity drops "
                    "rows beyond it)",
                    view.shape[0], needed.rows));
  }
  if (view.data == nullptr && needed.rows > 0) return fail("has no memory (null data)");
  return {};
}

/// Whatever the caller's allocator does, the operation goes on: other ranks count on it.
void* ask(const RowAllocator& allocator, BufferKind kind, std::size_t bytes) {
  try {
    return allocator(kind, bytes);
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

Result<ReceiveBuffers> resolve_buffers(const DispatchOutputs& outputs, const RowsNeeded& needed,
                                       const TakeBuffer& take) {
  ReceiveBuffers buffers;
  const std::int64_t columns = scale_columns(needed);
  const bool scaled = columns > 0;
  if (outputs.rows.given()) {
    Status status =
        check("rows", outputs.rows, codec::row_dtype(needed.codec), needed.hidden, needed, true);
    if (!status.ok()) return status;
    buffers.rows = outputs.rows;
  }
  if (scaled && outputs.scales.given()) {
    Status status =
        check("scales", outputs.scales, scale_dtype(needed.codec), columns, needed, false);
    if (!status.ok()) return status;
    buffers.scales = outputs.scales;
  }
  // With padding, scales are zeroed wherever rows are.
  const auto tensor_rows = [](const TensorView& view) {
    return view.dims == 3 ? view.shape[0] * view.shape[1] : view.shape[0];
  };
  RowsNeeded scales_needed = needed;
  if (buffers.rows.given()) scales_needed.rows = tensor_rows(buffers.rows);
  if (outputs.zero_padding && buffers.scales.given() &&
      tensor_rows(buffers.scales) < scales_needed.rows) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("scales holds {} rows, expected as many as rows, {}, with zero_padding",
                    tensor_rows(buffers.scales), scales_needed.rows));
  }
  const auto row_count = static_cast<std::size_t>(needed.rows);
  const std::size_t rows_bytes =
      buffers.rows.given() ? 0 : row_count * codec::row_bytes(needed.codec, needed.hidden);
  const std::size_t scales_bytes = scaled && !buffers.scales.given()
                                       ? static_cast<std::size_t>(scales_needed.rows) *
                                             codec::scale_bytes(needed.codec, needed.hidden)
                                       : 0;
  const bool need_rows = !buffers.rows.given();
  const bool need_scales = scaled && !buffers.scales.given();
  if (!need_rows && !need_scales) return buffers;

  void* rows_data = nullptr;
  void* scales_data = nullptr;
  if (outputs.allocator) {
    if (need_rows) rows_data = ask(outputs.allocator, BufferKind::rows, rows_bytes);
    if (need_scales) scales_data = ask(outputs.allocator, BufferKind::scales, scales_bytes);
  } else {
    const std::size_t scales_at = window::round_up(rows_bytes, window::kLineBytes);
    buffers.owner = take(scales_at + scales_bytes);
    if (buffers.owner != nullptr) {
      rows_data = buffers.owner.get();
      scales_data = static_cast<std::byte*>(buffers.owner.get()) + scales_at;
    }
  }
  if ((rows_bytes > 0 && rows_data == nullptr) || (scales_bytes > 0 && scales_data == nullptr)) {
    return Status(StatusCode::out_of_memory,
                  fmt::format("no memory for the received rows: {} bytes of rows and {} of scales",
                              rows_bytes, scales_bytes));
  }
  if (need_rows) {
    buffers.rows = contiguous(rows_data, codec::row_dtype(needed.codec), needed, needed.hidden);
  }
  if (need_scales) {
    buffers.scales = contiguous(scales_data, scale_dtype(needed.codec), scales_needed, columns);
  }
  return buffers;
}

}  // namespace sluice::engine
