// SPDX-License-Identifier: MIT
#include "engine/cpu/partial_sum.hpp"

#include <algorithm>
#include <bit>

#include "base/mutants.hpp"
#include "routing/routes.hpp"

namespace sluice::engine::cpu {

using base::mutant;
using base::Mutant;

std::uint32_t present_routes(const RecordRoutes& record) noexcept {
  std::uint32_t mask = 0;
  for (int k = 0; k < record.top_k; ++k) {
    if (record.rows[k] != Handle::kRowAbsent) mask |= 1U << k;
  }
  return mask;
}

std::uint32_t stored_routes(const RecordRoutes& record, std::uint32_t present,
                            std::uint32_t routes) noexcept {
  std::uint32_t mask = 0;
  for (std::uint32_t left = routes; left != 0; left &= left - 1) {
    const int k = std::countr_zero(left);
    int first = k;
    if (record.rows[k] == Handle::kRowDuplicate) {
      for (std::uint32_t lower = present; lower != 0; lower &= lower - 1) {
        first = std::countr_zero(lower);
        if (record.ids[first] == record.ids[k]) break;
      }
    }
    if (record.rows[first] >= 0) mask |= 1U << k;
  }
  return mask;
}

void gather(const ResultRows& y, const RecordRoutes& record, PartialSum& out) noexcept {
  out.count = 0;
  out.answered = 0;
  out.dtype = y.dtype;
  out.weighted = y.weighted;
  out.present = 0;
  bool duplicates = false;
  for (int k = 0; k < record.top_k; ++k) {
    const std::int32_t row = record.rows[k];
    out.present |= static_cast<std::uint32_t>(row != Handle::kRowAbsent) << k;
    out.answered |= static_cast<std::uint32_t>(row >= 0) << k;
    duplicates |= row == Handle::kRowDuplicate;
  }
  for (std::uint32_t left = out.answered; left != 0; left &= left - 1) {
    const int k = std::countr_zero(left);
    codec::SumTerm& term = out.terms[static_cast<std::size_t>(out.count++)];
    term.row = y.grid.row(record.rows[k]);
    term.weight = !y.weighted  ? 1.0F
                  : duplicates ? routing::merged_weight(record.ids, record.weights, out.present, k)
                               : record.weights[k];
    if (y.rank_major) break;
  }
  if (duplicates) out.answered = stored_routes(record, out.present, out.present);
  if (mutant(Mutant::sum_descending)) {
    std::reverse(out.terms.begin(), out.terms.begin() + out.count);
  }
}

void form(const codec::RowKernels& kernels, const PartialSum& sum, void* out,
          const SumTarget& target, const PartialSum* next) {
  codec::SumArgs args;
  args.terms = {sum.terms.data(), static_cast<std::size_t>(sum.count)};
  args.term_dtype = sum.dtype;
  args.weighted = sum.weighted;
  args.out = out;
  args.out_dtype = target.dtype;
  args.elements = target.elements;
  args.streaming = target.streaming;
  if (next != nullptr) args.next = {next->terms.data(), static_cast<std::size_t>(next->count)};
  kernels.sum(args);
}

}  // namespace sluice::engine::cpu
