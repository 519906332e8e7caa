// SPDX-License-Identifier: MIT
#include "sluice/handle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "api/guarded.hpp"
#include "memory/copy_from.hpp"
#include "window/handle_layout.hpp"

namespace sluice {
namespace {

using window::HandleHeader;
using window::HandleLayout;

/// A copy: the handle may lie on a GPU. All zero where it cannot be read.
HandleHeader header_of(const Handle& handle) noexcept {
  HandleHeader header;
  if (!memory::copy_from(handle.device(), &header, handle.data(), sizeof(header)).ok()) return {};
  return header;
}

/// The whole handle in host memory; its bytes are kept in `copy` if it lies on a GPU.
Handle on_host(const Handle& handle, std::vector<std::byte>& copy) {
  if (handle.device() == Device::cpu) return handle;
  copy.resize(handle.bytes() + window::kLineBytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(copy.data());
  void* const aligned = copy.data() + (window::round_up(begin, window::kLineBytes) - begin);
  if (!memory::copy_from(handle.device(), aligned, handle.data(), handle.bytes()).ok()) return {};
  return {aligned, handle.bytes()};
}

ConstTensorView on_device(ConstTensorView view, Device device) noexcept {
  view.device = device;
  return view;
}

const std::byte* at(const void* data, std::size_t offset) noexcept {
  return static_cast<const std::byte*>(data) + offset;
}

template <typename T>
const T* array(const void* data, std::size_t offset) noexcept {
  return reinterpret_cast<const T*>(at(data, offset));
}

Status check_tensor(const char* what, const TensorView& out, DType dtype,
                    std::initializer_list<std::int64_t> shape) {
  bool fits =
      out.dtype == dtype && out.dims == static_cast<int>(shape.size()) && out.device == Device::cpu;
  std::size_t i = 0;
  for (const std::int64_t extent : shape) {
    // The first dimension may be larger.
    if (fits) fits = i == 0 ? out.shape[i] >= extent : out.shape[i] == extent;
    ++i;
  }
  if (fits && (out.data != nullptr || *shape.begin() == 0)) return {};
  return {
      StatusCode::invalid_argument,
      fmt::format("{}: expected {} [{}, ...] of {} dimensions in host memory, seen {} [{}, {}, {}] "
                  "of {} at {}",
                  what, to_string(dtype), *shape.begin(), shape.size(), to_string(out.dtype),
                  out.shape[0], out.shape[1], out.shape[2], out.dims, fmt::ptr(out.data))};
}

}  // namespace

bool Handle::valid() const noexcept {
  if (data_ == nullptr || bytes_ < sizeof(HandleHeader)) return false;
  if (reinterpret_cast<std::uintptr_t>(data_) % window::kLineBytes != 0) return false;
  const HandleHeader header = header_of(*this);
  if (header.magic != window::kHandleMagic || header.ranks < 1 || header.ranks > kMaxRanks ||
      header.top_k < 1 || header.top_k > kMaxTopk || header.local_experts < 0 ||
      header.local_experts > kMaxExperts || header.max_tokens < 1 ||
      header.max_tokens > kMaxTokens) {
    return false;
  }
  return bytes_ >= HandleLayout(header).bytes;
}

bool Handle::refused() const noexcept {
  return header_of(*this).refused != 0;
}

Layout Handle::layout() const noexcept {
  return static_cast<Layout>(header_of(*this).layout);
}

std::int64_t Handle::tokens() const noexcept {
  return header_of(*this).tokens;
}

std::int64_t Handle::rows() const noexcept {
  return header_of(*this).rows;
}

std::int64_t Handle::records() const noexcept {
  return header_of(*this).records;
}

Report Handle::report() const noexcept {
  return header_of(*this).report;
}

ConstTensorView Handle::topk_ids() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).topk_ids), DType::i32, header.tokens, header.top_k}, device_);
}

ConstTensorView Handle::topk_weights() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).topk_weights), DType::f32, header.tokens, header.top_k},
      device_);
}

ConstTensorView Handle::counts() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device({at(data_, HandleLayout(header).counts), DType::i32, header.local_experts},
                   device_);
}

ConstTensorView Handle::aligned_counts() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).aligned_counts), DType::i32, header.local_experts}, device_);
}

ConstTensorView Handle::offsets() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device({at(data_, HandleLayout(header).offsets), DType::i64, header.local_experts + 1},
                   device_);
}

ConstTensorView Handle::source_offsets() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device({at(data_, HandleLayout(header).source_offsets), DType::i64, header.ranks + 1},
                   device_);
}

ConstTensorView Handle::record_rank() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device({at(data_, HandleLayout(header).record_rank), DType::i32, header.records},
                   device_);
}

ConstTensorView Handle::record_token() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device({at(data_, HandleLayout(header).record_token), DType::i32, header.records},
                   device_);
}

ConstTensorView Handle::local_ids() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).local_ids), DType::i32, header.records, header.top_k},
      device_);
}

ConstTensorView Handle::local_weights() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).local_weights), DType::f32, header.records, header.top_k},
      device_);
}

ConstTensorView Handle::route_rows() const noexcept {
  const HandleHeader header = header_of(*this);
  return on_device(
      {at(data_, HandleLayout(header).route_rows), DType::i32, header.records, header.top_k},
      device_);
}

Status Handle::row_sources(TensorView out) const {
  return api::guarded([&]() -> Status {
    if (device_ != Device::cpu) {
      std::vector<std::byte> copy;
      return on_host(*this, copy).row_sources(out);
    }
    if (!valid()) return {StatusCode::invalid_argument, "row_sources: the handle is not filled"};
    const HandleHeader header = header_of(*this);
    if (Status status = check_tensor("row_sources", out, DType::i32, {header.rows, 3});
        !status.ok()) {
      return status;
    }
    const auto put = [&out](std::int64_t row, std::int32_t rank, std::int32_t token,
                            std::int32_t k) {
      auto* to = static_cast<std::int32_t*>(out.data) + row * out.strides[0];
      to[0] = rank;
      to[out.strides[1]] = token;
      to[2 * out.strides[1]] = k;
    };
    for (std::int64_t row = 0; row < out.shape[0]; ++row) put(row, -1, -1, -1);
    const HandleLayout layout(header);
    const auto* rows = array<std::int32_t>(data_, layout.route_rows);
    for (std::int64_t record = 0; record < header.records; ++record) {
      const std::int32_t rank = array<std::int32_t>(data_, layout.record_rank)[record];
      const std::int32_t token = array<std::int32_t>(data_, layout.record_token)[record];
      if (rank < 0) continue;
      // Descending, so that the lowest route of a row stays.
      for (std::int32_t k = header.top_k - 1; k >= 0; --k) {
        const std::int32_t row = rows[record * header.top_k + k];
        if (row >= 0) put(row, rank, token, k);
      }
    }
    return {};
  });
}

Status Handle::source_segments(TensorView out) const {
  return api::guarded([&]() -> Status {
    if (device_ != Device::cpu) {
      std::vector<std::byte> copy;
      return on_host(*this, copy).source_segments(out);
    }
    if (!valid())
      return {StatusCode::invalid_argument, "source_segments: the handle is not filled"};
    const HandleHeader header = header_of(*this);
    if (layout() == Layout::rank_major) {
      return {StatusCode::invalid_argument,
              "source_segments: the layout is rank_major, expected an expert layout "
              "(source_offsets has "
              "the segments of rank_major)"};
    }
    if (Status status = check_tensor("source_segments", out, DType::i64,
                                     {header.local_experts, header.ranks, 2});
        !status.ok()) {
      return status;
    }
    const HandleLayout layout(header);
    const auto* ids = array<std::int32_t>(data_, layout.local_ids);
    const auto* sources = array<std::int64_t>(data_, layout.source_offsets);
    const auto* offsets = array<std::int64_t>(data_, layout.offsets);
    const auto entry = [&out](std::int64_t expert, std::int64_t rank, int which) -> std::int64_t& {
      return static_cast<std::int64_t*>(
          out.data)[expert * out.strides[0] + rank * out.strides[1] + which * out.strides[2]];
    };
    for (std::int64_t expert = 0; expert < header.local_experts; ++expert) {
      for (std::int64_t rank = 0; rank < header.ranks; ++rank) entry(expert, rank, 1) = 0;
    }
    for (std::int64_t rank = 0; rank < header.ranks; ++rank) {
      for (std::int64_t record = sources[rank]; record < sources[rank + 1]; ++record) {
        const std::int32_t* record_ids = ids + record * header.top_k;
        for (int k = 0; k < header.top_k; ++k) {
          const bool first = std::find(record_ids, record_ids + k, record_ids[k]) == record_ids + k;
          if (record_ids[k] >= 0 && first) ++entry(record_ids[k], rank, 1);
        }
      }
    }
    for (std::int64_t expert = 0; expert < header.local_experts; ++expert) {
      std::int64_t row = offsets[expert];
      for (std::int64_t rank = 0; rank < header.ranks; ++rank) {
        entry(expert, rank, 0) = row;
        row += entry(expert, rank, 1);
      }
    }
    return {};
  });
}

}  // namespace sluice
