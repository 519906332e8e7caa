// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/types.hpp"

namespace sluice::engine {

/// Where the rows of a received tensor or of expert results lie: [N, ...] or [L, slab_rows, ...],
/// any strides. All arithmetic in 64 bits.
class RowGrid {
 public:
  RowGrid() = default;
  template <typename Void>
  explicit RowGrid(const BasicTensorView<Void>& view) noexcept
      : base_(static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data)))) {
    const auto element = static_cast<std::ptrdiff_t>(size_of(view.dtype));
    if (view.dims == 3) {
      slab_rows_ = view.shape[1];
      slab_stride_ = view.strides[0] * element;
      row_stride_ = view.strides[1] * element;
      element_stride_ = view.strides[2] * element;
    } else {
      row_stride_ = view.strides[0] * element;
      element_stride_ = view.strides[1] * element;
    }
  }
  /// Rows one stride after the other. They are only read.
  RowGrid(const std::byte* first, std::ptrdiff_t row_stride) noexcept
      : base_(const_cast<std::byte*>(first)), row_stride_(row_stride) {}

  std::byte* row(std::int64_t index) const noexcept {
    if (slab_rows_ == 0) return base_ + index * row_stride_;
    return base_ + index / slab_rows_ * slab_stride_ + index % slab_rows_ * row_stride_;
  }
  std::ptrdiff_t row_stride() const noexcept { return row_stride_; }
  std::ptrdiff_t element_stride() const noexcept { return element_stride_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t slab_rows_ = 0;
  std::ptrdiff_t slab_stride_ = 0;
  std::ptrdiff_t row_stride_ = 0;
  std::ptrdiff_t element_stride_ = 0;
};

}  // namespace sluice::engine
