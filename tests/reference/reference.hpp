// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/quantise.hpp"
#include "sluice/types.hpp"

/// Dispatch and combine over all ranks in one process, in plain loops: what every engine must
/// equal bit for bit. It shares no code with the library.
///
/// The rules
///
/// Routes. Route (token, k) of a source rank is *valid* unless the mask skips it (mask [T]: the
///   token, mask [T, K]: the route), its id is -1, or its id lies outside [-1, E): only the last
///   counts as a bad route, and a masked id is not looked at. A used id is the id of a valid
///   route, else -1. Without weights every weight is 1. Expert e lives on rank map[e]; without a
///   map, experts are contiguous and the first E mod R ranks own one more. Local experts of a rank
///   are its experts in ascending order.
/// Records. Every rank has one record per (source, token) with at least one valid route on it,
///   ordered by (source, token). Per route k: its local expert or -1, its own weight or 0.
/// Counts. Per local expert the number of distinct (source, token); true, whatever the capacity.
/// Rows. rank_major: one per record. expert_major: one per distinct (token, expert), ordered
///   (expert, source, token); the segment of an expert starts at a multiple of the alignment, and
///   the number of rows is the sum of the counts rounded up to it. expert_slab: the same order,
///   expert l's segment starts at l * slab_rows (the capacity, by default R * M). The alignment
///   belongs to expert_major alone. Row numbers at or beyond the capacity (slab: beyond the slab)
///   are not stored; they count as overflow rows of the receiver, and every route of such a row is
///   lost.
/// Source of a row: (source rank, token, the lowest k of the token on that row).
/// Row of route k in a record: absent (-1) if not on this rank; rank_major: the record's row, or
///   overflow (-3); else duplicate (-2) if a lower k has the same expert, or the row, or overflow.
///
/// Combine, for token t of a home rank. A(v) = decode(encode(v)) on the combine codec. A route is
///   answered if it is valid, its row was stored, and its rank is not among the lost ranks.
///   Expert layouts: of routes with the same expert only the lowest k takes part, and its weight
///   is the sum of their weights in f32, k ascending, from +0 if there are several.
///   rank    p_r = +0; p_r = fma(w_k, y_k, p_r) over the answered routes of rank r, k ascending;
///           s = +0; s = s + A(p_r) over the ranks with an answered route, ascending.
///   node    p_r as above; q_n = +0; q_n = q_n + A(p_r) over the node's ranks with an answered route,
///           ascending; s = +0; s = s + A(q_n) over the nodes that have such ranks, by their lowest rank.
///   single  s = +0; s = fma(w_k, A(y_k), s) over the answered routes, k ascending.
///   Plain sum: p_r + y_k and s + A(y_k) in place of the fma. rank_major: y of the record is p_r.
/// Loss. W = the weights of all valid routes, each its own, f32, k ascending from +0; W_answered
///   the same over the answered routes, and that is surviving_weight. If a route of the token was
///   lost and renormalisation is on: none answered: s = +0; else if W_answered != W:
///   s = s * (W / W_answered).
/// End. s = s + shared result, in order; s = s + bias, in order; one rounding to the output type.
/// Weights home. Route (t, k) gets element k of its record's row_weights, 0 if not answered.
namespace sluice::reference {

/// A number as an index.
inline std::size_t at(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

/// One rank's arguments of a dispatch.
struct RankInput {
  std::int64_t tokens = 0;
  DType x_dtype = DType::bf16;
  std::vector<std::byte> x;            // [T, H]
  std::vector<EncodedRow> encoded;     // [T], given in place of x; or empty
  std::vector<std::int64_t> topk_ids;  // [T, K]
  std::vector<float> topk_weights;     // [T, K], or empty
  std::vector<std::uint8_t> mask;      // [T], [T, K], or empty
};

struct DispatchProblem {
  int ranks = 0;
  int experts = 0;
  int top_k = 0;
  int hidden = 0;
  int max_tokens = 0;
  std::vector<std::int32_t> expert_to_rank;  // E entries, or empty
  Layout layout = Layout::expert_major;
  Codec codec;
  std::int64_t expert_alignment = 1;
  std::int64_t capacity = 0;
  std::vector<RankInput> inputs;  // R
};

/// A rank's own routes, as used.
struct Routes {
  std::vector<std::int32_t> ids;  // [T, K], -1 where not valid
  std::vector<float> weights;     // [T, K]
  std::int64_t bad_routes = 0;
};

/// One row of a rank's received tensor.
struct Row {
  std::int64_t number = 0;
  int source = 0;
  std::int64_t token = 0;
  int k = 0;
  int local_expert = -1;  // -1 in rank_major
  bool stored = true;
};

struct Segment {
  std::int64_t first_row = 0;
  std::int64_t count = 0;
};

/// What a rank receives.
struct RankRows {
  std::vector<std::int32_t> local_experts;   // global ids
  std::vector<std::int32_t> counts;          // [L]
  std::vector<std::int32_t> aligned_counts;  // [L]
  std::vector<std::int64_t> offsets;         // [L + 1]; expert layouts
  std::int64_t row_count = 0;                // rows of the tensor, padding and overflow included
  std::int64_t overflow_rows = 0;
  std::vector<Row> rows;  // ascending by number, overflow included
  std::vector<std::int32_t> record_rank;
  std::vector<std::int32_t> record_token;
  std::vector<std::int32_t> local_ids;       // [records, K]
  std::vector<float> local_weights;          // [records, K]
  std::vector<std::int32_t> route_rows;      // [records, K]
  std::vector<std::int64_t> source_offsets;  // [R + 1]
  std::vector<Segment> source_segments;      // [L, R]; expert layouts

  std::int64_t records() const { return static_cast<std::int64_t>(record_rank.size()); }
};

struct Dispatched {
  std::vector<std::int32_t> expert_to_rank;      // E, always filled
  std::vector<Routes> routes;                    // R
  std::vector<RankRows> ranks;                   // R
  std::vector<std::vector<EncodedRow>> encoded;  // [source][token]

  const EncodedRow& payload(const Row& row) const {
    return encoded[static_cast<std::size_t>(row.source)][static_cast<std::size_t>(row.token)];
  }
};

/// The map that a problem uses: its own, or the contiguous one.
std::vector<std::int32_t> expert_map(const DispatchProblem& problem);
Dispatched dispatch(const DispatchProblem& problem);

/// A matrix of [T, H] in its own dtype.
struct Matrix {
  DType dtype = DType::bf16;
  std::vector<std::byte> data;
};

/// One rank's arguments of a combine, as an expert's rank and as a home.
struct CombineInput {
  std::vector<std::byte> y;        // one row per entry of RankRows::rows, in that order
  std::vector<float> row_weights;  // [records, K], or empty (rank_major)
  std::vector<float> weights;      // [T, K], or empty: those of dispatch
  DType out_dtype = DType::bf16;
  std::vector<Matrix> shared_results;
  std::vector<Matrix> biases;
  bool renormalize = true;
};

struct CombineProblem {
  DType y_dtype = DType::bf16;
  CodecKind codec = CodecKind::bf16;
  Reduce reduce = Reduce::rank;
  std::vector<int> rank_to_node;  // node: R entries, or empty: one node
  bool plain_sum = false;
  std::vector<CombineInput> inputs;  // R
  std::vector<bool> lost_ranks;      // R entries, or empty: their results do not come home
};

/// What a home rank gets.
struct Combined {
  std::vector<std::byte> out;           // [T, H]
  std::vector<float> surviving_weight;  // [T]
  std::vector<float> weights_home;      // [T, K]
  std::int64_t lost_routes = 0;
};

std::vector<Combined> combine(const DispatchProblem& dispatch_problem, const Dispatched& dispatched,
                              const CombineProblem& problem);

}  // namespace sluice::reference
