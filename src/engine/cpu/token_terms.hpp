// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "codec/row_kernels.hpp"
#include "engine/cpu/context.hpp"
#include "engine/cpu/handle_writer.hpp"
#include "engine/cpu/partial_sum.hpp"
#include "routing/routes.hpp"
#include "sluice/limits.hpp"
#include "sluice/report.hpp"

namespace sluice::engine::cpu {

/// What one token's sum consists of: groups of terms, a group for every partial sum, or with
/// `single` one term for every route. With reduce = node these are the sum of its own node, which is
/// one of `node_sums`.
struct TokenTerms {
  struct Term {
    codec::SumTerm term;
    int k = 0;
  };

  void clear() noexcept {
    count = group_count = converted_count = 0;
    node_sum_count = 0;
    expected = answered = 0;
    weighted = false;
  }
  void add(const void* row, float weight, int k) noexcept {
    terms[static_cast<std::size_t>(count++)] = {{row, weight}, k};
  }
  void end_group(int size) noexcept {
    groups[static_cast<std::size_t>(group_count++)] = static_cast<std::uint8_t>(size);
  }

  std::array<Term, kMaxTopk> terms;
  std::array<std::uint8_t, kMaxTopk> groups;
  /// Partial sums of rows in another dtype than the combine codec's: formed first, sum i in row i of
  /// the scratch.
  std::array<PartialSum, kMaxTopk> converted;
  /// Nodes ascending; null: to be formed of the terms.
  std::array<const void*, kMaxTopk> node_sums;
  int node_sum_count = 0;
  int count = 0;
  int group_count = 0;
  int converted_count = 0;
  bool weighted = false;       // Else every term is a group of its own, of weight 1.
  std::uint32_t expected = 0;  // Routes that have an expert; those of them that are in the terms.
  std::uint32_t answered = 0;
};

/// Finds the terms of this rank's tokens, one token after the other.
class TermFinder {
 public:
  TermFinder(Context& context, CombineOperation& operation, const HandleArrays& handle,
             const RankSet& accepted);

  void find(int token, TokenTerms& out);

 private:
  Answers answers_of(int rank) const noexcept;
  void judge_node(int node, const RankSet& accepted);
  void take_nodes(int token, const routing::Destinations& destinations, TokenTerms& out);
  void take_rows(const Answers& answers, const routing::Destination& from, TokenTerms& out);
  void take_routes(const Answers& answers, const routing::Destination& from, TokenTerms& out);
  void take_sum(const Answers& answers, const routing::Destination& from, TokenTerms& out);
  void take_slot(const Answers& answers, const routing::Destination& from, float weight, int k,
                 TokenTerms& out);
  void count_bytes(int rank, int rows, DType dtype) noexcept;

  Context& context_;
  CombineOperation& operation_;
  const HandleArrays& handle_;
  int bank_;
  bool single_;
  bool by_node_;
  DType codec_dtype_;
  const std::int32_t* ids_ = nullptr;  // Of the token at hand, [K].
  const float* weights_ = nullptr;
};

}  // namespace sluice::engine::cpu
