// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/region_allocator.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::engine {

/// What allocate() says when there is no room for `bytes` in registered memory.
inline Status no_registered_memory(std::size_t bytes, const memory::RegionAllocator& memory) {
  return {StatusCode::out_of_memory,
          fmt::format("allocate({} bytes): the largest free block of registered memory has {} "
                      "bytes; expected options.registered_bytes to be larger",
                      bytes, memory.largest_free())};
}

/// Whether the scales of encoded rows lie right behind them: then a row and its scales are one record.
inline bool scales_behind_rows(const ConstTensorView& x, const ConstTensorView& scales,
                               std::size_t row_bytes) noexcept {
  return scales.given() && scales.data == static_cast<const std::byte*>(x.data) + row_bytes &&
         scales.strides[0] * 4 == x.strides[0] && scales.strides[1] == 1;
}

/// Whether all rows of `view`, [N, H] or slabs without gaps [L, slab_rows, H], lie in the registered
/// memory at `base`, so that peers can read them where they are; then `offset` is that of the first
/// element, and rows follow one another at the last stride but one.
inline bool registered_offset(const std::byte* base, std::size_t bytes, const ConstTensorView& view,
                              std::uint64_t* offset) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  const auto at = reinterpret_cast<std::uintptr_t>(view.data);
  if (bytes == 0 || at < begin || at >= begin + bytes || view.strides[0] < 0) return false;
  const bool slabs = view.dims == 3;
  const std::int64_t row_stride = view.strides[slabs ? 1 : 0];
  if (slabs && (row_stride < 0 || view.strides[0] != view.shape[1] * row_stride)) return false;
  const std::int64_t count = slabs ? view.shape[0] * view.shape[1] : view.shape[0];
  const std::uint64_t element = size_of(view.dtype);
  const auto rows = static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1));
  const std::uint64_t last_row = (rows - 1) * static_cast<std::uint64_t>(row_stride) * element;
  const std::uint64_t extent =
      last_row + static_cast<std::uint64_t>(view.shape[slabs ? 2 : 1]) * element;
  if (at - begin + extent > bytes) return false;
  *offset = at - begin;
  return true;
}

}  // namespace sluice::engine
