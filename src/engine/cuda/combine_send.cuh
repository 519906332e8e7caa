// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"

/// combine, send half: the expert's rank forms one partial sum per record and pushes it home.
namespace sluice::engine::cuda {

/// Weights that were given to combine, to the ranks of their experts. A token by one warp.
__device__ __forceinline__ void send_weights(const Combine& c, int token, int lane) {
  std::uint32_t ranks = 0;
  const HomeToken from = read_token(c, token, lane, ranks);
  const float weight = read_weight(c, token, lane);
  for_each_peer(c.g, ranks & ~c.suspects, [&](int rank) {
    send_weights_to(c, out_at(c.g, rank, c.g.layout.weight(c.bank, token)),
                    from.owner == rank ? weight : 0.0F, lane);
  });
}

/// The routes of a record whose rows are summed.
__device__ __forceinline__ std::uint32_t summed_routes(const Combine& c, const Record& record) {
  const std::uint32_t stored = lanes_with(record.row >= 0);
  const bool rank_major = c.layout == static_cast<std::uint16_t>(Layout::rank_major);
  return rank_major ? stored & (~stored + 1) : stored;
}

/// The rows of one piece of a record, a few asked for at a time.
template <typename Traits>
struct Rows {
  static constexpr int kAhead = 4 / Traits::kSpan;
  typename Traits::Input y[kAhead];

  /// Asks for the next rows, of the lanes in `left`.
  __device__ __forceinline__ void ask(const CombineArgs& a, int own_row, std::uint32_t left,
                                      int element) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = __shfl_sync(~0U, own_row, (__ffs(static_cast<int>(left)) - 1) & 31);
      if (left != 0) {
        y[i].load(Traits::row(a.y, row), element, a.geometry.hidden, Traits::kCommon || a.aligned);
      }
      left &= left - 1;
    }
  }
  /// Adds them; returns the lanes that remain.
  __device__ __forceinline__ std::uint32_t add(const CombineArgs& a, float own_weight,
                                               std::uint32_t left,
                                               float (&sum)[Traits::kSpan][kLaneElements]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float weight = __shfl_sync(~0U, own_weight, (__ffs(static_cast<int>(left)) - 1) & 31);
      if (left == 0) break;
      left &= left - 1;
#pragma unroll
      for (int j = 0; j < Traits::kSpan; ++j) {
        float v[kLaneElements];
        y[i].floats(j, v, Traits::y_dtype(a));
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) {
          sum[j][e] = mutant(KernelMutant::product_rounded) ? weight * v[e] + sum[j][e]
                                                            : __fmaf_rn(weight, v[e], sum[j][e]);
        }
      }
    }
    return left;
  }
};

/// A piece of one record, whose first rows are asked for: its partial sum, or with `single` its rows.
template <typename Traits>
__device__ __forceinline__ void send_record(const Combine& c, Record record, Rows<Traits>& rows,
                                            int index, int step, Patience& patience, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const int home = record.home;
  const int token = record.token;
  if (home < 0 || ((c.suspects >> home) & 1U) != 0) return;
  const bool rank_major = c.layout == static_cast<std::uint16_t>(Layout::rank_major);
  const bool weighted = !rank_major && (Traits::kCommon || !a.plain_sum);
  if (!mutant(KernelMutant::given_weights_ignored) && Traits::kWeights &&
      (Traits::kCommon || (!Traits::kSingle && a.weights_given)) && weighted) {
    record.weight = await_weight(c, home, token, patience, lane);
  }
  const std::uint32_t stored = lanes_with(record.row >= 0);
  std::uint32_t answered = stored;
  if (lanes_with(record.row == Handle::kRowDuplicate) != 0) {
    const Merged merged =
        merge_routes(c.handle.local_ids() + index * g.top_k, g.top_k, record.row, record.weight);
    record.weight = merged.weight;
    answered = merged.answered;
  }
  if (!weighted) record.weight = 1.0F;

  if (step == 0 && lane == 0) {
    store_packet(out_at(g, home, g.layout.answer(c.bank, token)),
                 make_uint4(c.tag, answered, c.signature, stored));
  }
  if (!Traits::kCommon && step == 0 && a.row_weights != nullptr) {
    float value = 0.0F;
    if (record.row >= 0) {  // Of rank_major: the record's own row.
      value = a.row_weights[record.row * a.row_weights_stride[0] + lane * a.row_weights_stride[1]];
    }
    send_weights_to(c, out_at(g, home, g.layout.row_weight(c.bank, token)), value, lane);
  }

  const int element = step * Traits::kStep + lane * kLaneElements;
  typename Traits::Output packets;
  if constexpr (Traits::kSingle) {
#pragma unroll 1
    for (std::uint32_t left = stored; left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      typename Traits::Input y;
      y.load(row_at(a.y, __shfl_sync(~0U, record.row, k)), element, g.hidden,
             Traits::kCommon || a.aligned);
      float v[kLaneElements];
      y.floats(0, v, a.y_dtype);
      packets.encode(0, v, a.codec);
      packets.push(out_at(g, home, g.layout.combine_row(c.bank, c.slot(token, k))), element,
                   g.hidden);
    }
  } else {
    std::uint32_t left = summed_routes(c, record);
    if (left == 0) return;
    float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
    for (;;) {
      left = rows.add(a, record.weight, left, sum);
      if (left == 0) break;
      rows.ask(a, record.row, left, element);
    }
#pragma unroll
    for (int j = 0; j < Traits::kSpan; ++j) packets.encode(j, sum[j], Traits::codec(a));
    packets.push(out_at(g, home, g.layout.combine_row(c.bank, c.slot(token, 0))), element,
                 g.hidden);
  }
}

}  // namespace sluice::engine::cuda
