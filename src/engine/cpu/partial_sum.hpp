// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "codec/row_kernels.hpp"
#include "engine/row_grid.hpp"
#include "sluice/handle.hpp"
#include "sluice/limits.hpp"
#include "sluice/types.hpp"

namespace sluice::engine::cpu {

/// One rank's expert results y: where row n lies, and how rows of one record add up.
struct ResultRows {
  RowGrid grid;
  DType dtype = DType::bf16;
  bool rank_major = false;  // y is the partial sum: one row per record.
  bool weighted = false;
};

/// One record, a (token, expert's rank): its K routes. `rows` has Handle::kRowAbsent for routes to
/// other ranks, and what the handle has for duplicates and rows that are not stored. `ids` tell
/// experts of this rank apart: local or global ones.
struct RecordRoutes {
  const std::int32_t* rows = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  int top_k = 0;
};

/// A record's partial sum before it is formed: its terms, k ascending. Unweighted terms weigh 1.
struct PartialSum {
  std::array<codec::SumTerm, kMaxTopk> terms;
  int count = 0;
  DType dtype = DType::bf16;  // Of the rows.
  bool weighted = false;
  std::uint32_t present = 0;  // The record's routes; those that are in the sum.
  std::uint32_t answered = 0;
};

/// Routes of the record to its rank.
std::uint32_t present_routes(const RecordRoutes& record) noexcept;
/// Of `routes`, those whose row is stored; a duplicate has the row of its lowest k.
std::uint32_t stored_routes(const RecordRoutes& record, std::uint32_t present,
                            std::uint32_t routes) noexcept;

void gather(const ResultRows& y, const RecordRoutes& record, PartialSum& out) noexcept;

/// Rows of the combine codec.
struct SumTarget {
  DType dtype = DType::bf16;
  int elements = 0;
  bool streaming = false;
};
/// `next`: what will be formed next, a hint, or null.
void form(const codec::RowKernels& kernels, const PartialSum& sum, void* out,
          const SumTarget& target, const PartialSum* next);

}  // namespace sluice::engine::cpu
