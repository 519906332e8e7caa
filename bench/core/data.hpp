// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "case.hpp"

namespace sluice::bench {

/// Rows of random bf16 numbers that every rank can look at without storing or sending them: row r
/// of a stream is a piece of one long noise, at a place that is a function of (stream, rank, row).
class Noise {
 public:
  enum class Stream : std::uint64_t { x = 1, y = 2 };

  Noise(std::uint64_t seed, int hidden);
  /// `hidden` bf16 values.
  const std::uint16_t* row(Stream stream, int rank, std::int64_t row) const noexcept;

 private:
  static constexpr std::size_t kValues = std::size_t{1} << 21;
  std::uint64_t seed_;
  std::vector<std::uint16_t> values_;
};

/// The data sets of one tensor in one piece of memory: set s begins at row s * stride. Small
/// tensors get places of their own (stride = rows); of large ones, which do not fit into any cache
/// anyhow, the sets overlap with a shift, so that memory does not grow with the number of sets.
/// Slabs, mostly empty, lie inside one another where their rows do not meet.
struct Pool {
  std::int64_t rows = 0;  ///< Of one set.
  std::int64_t stride = 0;
  int sets = 1;

  /// `used_rows`: how many of `rows` hold data (a slab is mostly empty).
  static Pool plan(std::int64_t rows, std::int64_t used_rows, std::size_t row_bytes, int sets);
  std::int64_t first(int set) const noexcept { return stride * set; }
  std::int64_t total_rows() const noexcept { return rows + stride * (sets - 1); }
};

}  // namespace sluice::bench
