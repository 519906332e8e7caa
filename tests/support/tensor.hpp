// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/types.hpp"

namespace sluice::support {

/// A strided tensor over memory of its own or of somebody else, poisoned at first, so that what an
/// operation writes beside its elements can be seen.
class Tensor {
 public:
  /// What poisoned bytes hold: NaN in every float format of the library.
  static constexpr std::byte kPoison{0xFF};

  Tensor() = default;
  /// Rows (all but the last dimension) lie `gap` elements apart. `memory`: at least bytes() of it,
  /// or null for memory of its own, 64-byte aligned.
  Tensor(DType dtype, const std::vector<std::int64_t>& shape, std::int64_t gap = 0,
         void* memory = nullptr);
  /// Bytes that the above needs.
  static std::size_t bytes_needed(DType dtype, const std::vector<std::int64_t>& shape,
                                  std::int64_t gap);
  /// [..., rows, columns] with the elements of a column side by side and columns `gap` elements
  /// apart: the token-contiguous form of scales.
  static Tensor token_contiguous(DType dtype, const std::vector<std::int64_t>& shape,
                                 std::int64_t gap);

  TensorView view() const { return view_; }
  /// Row r, counted over all but the last dimension.
  std::byte* row(std::int64_t r) const;
  std::int64_t rows() const;
  std::int64_t columns() const { return view_.shape[static_cast<std::size_t>(view_.dims - 1)]; }

  /// Copies contiguous rows in, at consecutive rows from 0.
  void fill(const std::vector<std::byte>& contiguous);
  /// Writes one row, by elements of any stride.
  void set_row(std::int64_t r, const std::byte* elements);
  /// Poisons one row again, after its content was checked.
  void poison_row(std::int64_t r);
  /// Offset of the first byte that is not poison, -1 if all are.
  std::int64_t first_written() const;
  std::size_t bytes() const { return bytes_; }

 private:
  void place(void* memory);

  std::shared_ptr<void> storage_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  TensorView view_;
};

/// Copies rows of a strided view's last dimension; row r counts over the others.
const std::byte* row_of(const ConstTensorView& view, std::int64_t r);

}  // namespace sluice::support
