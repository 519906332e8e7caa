// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"

/// combine, on the expert's rank: forms one partial sum per record and pushes it home.
namespace sluice::engine::cuda {

/// The sum of the rows of the routes in `left`, pushed home.
template <typename Traits>
__device__ __forceinline__ void push_sum(const Combine& c, const Record& record, std::uint32_t left,
                                         int element, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const bool inside = element < g.hidden;
  float sum[kLaneElements] = {};
#pragma unroll 1
  while (left != 0) {
    constexpr int kRows = 4;  // in flight
    typename Traits::Input y[kRows];
    float weight[kRows];
    int rows = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (left == 0) break;
      const int k = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      const int row = __shfl_sync(~0U, record.row, k);
      weight[i] = __shfl_sync(~0U, record.weight, k);
      if (inside) y[i].load(row_at(a.y, row) + element * Traits::kInput);
      ++rows;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= rows) break;
      float v[kLaneElements];
      y[i].floats(v, a.y_dtype);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = __fmaf_rn(weight[i], v[e], sum[e]);
    }
  }
  if (!inside) return;
  typename Traits::Output packets;
  packets.encode(sum, a.codec);
  packets.store(
      out_at(g, record.home, g.layout.combine_row(g.rank, c.bank, c.slot(record.token, 0))),
      element);
}

/// A step of one record: its partial sum, or with `single` its rows.
template <typename Traits>
__device__ __forceinline__ void send_record(Combine& c, Record record, int step, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const int home = record.home;
  const int token = record.token;
  if (home < 0 || ((c.suspects >> home) & 1U) != 0) return;
  const bool rank_major = c.layout == static_cast<std::uint8_t>(Layout::rank_major);
  const bool weighted = !rank_major && !a.plain_sum;
  if (!Traits::kSingle && a.weights_given && weighted) {
    record.weight = await_weight(c, home, token, lane);
  }
  const std::uint32_t stored = lanes_with(record.row >= 0);
  std::uint32_t answered = stored;
  if (lanes_with(record.row == Handle::kRowDuplicate) != 0) {
    const std::uint32_t present = lanes_with(record.row != Handle::kRowAbsent);
    record.weight = merged_weight(record.expert, record.weight, present, lane);
#pragma unroll 1
    for (std::uint32_t left = stored; left != 0; left &= left - 1) {
      answered |= routes_to_same(record.expert, present, __ffs(static_cast<int>(left)) - 1);
    }
  }
  if (!weighted) record.weight = 1.0F;

  if (step == 0 && lane == 0) {
    store_packet(out_at(g, home, g.layout.answer(g.rank, c.bank, token)),
                 make_uint4(c.tag, answered, static_cast<std::uint32_t>(c.signature), stored));
  }
  if (step == 0 && a.row_weights != nullptr) {
    float value = 0.0F;
    if (record.row >= 0) {  // Of rank_major: the record's own row.
      value = a.row_weights[record.row * a.row_weights_stride[0] + lane * a.row_weights_stride[1]];
    }
    send_weights_to(c, out_at(g, home, g.layout.row_weight(g.rank, c.bank, token)), value, lane);
  }
  if (stored == 0) return;

  const int element = step * kStepElements + lane * kLaneElements;
  if constexpr (Traits::kSingle) {
#pragma unroll 1
    for (std::uint32_t left = stored; left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      const int row = __shfl_sync(~0U, record.row, k);
      if (element >= g.hidden) continue;
      typename Traits::Input y;
      y.load(row_at(a.y, row) + element * Traits::kInput);
      float v[kLaneElements];
      y.floats(v, a.y_dtype);
      typename Traits::Output packets;
      packets.encode(v, a.codec);
      packets.store(out_at(g, home, g.layout.combine_row(g.rank, c.bank, c.slot(token, k))),
                    element);
    }
  } else {
    push_sum<Traits>(c, record, rank_major ? stored & (~stored + 1) : stored, element, lane);
  }
}

}  // namespace sluice::engine::cuda
