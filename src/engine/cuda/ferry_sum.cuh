// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"
#include "engine/cuda/ferry_parts.cuh"

/// What a ferry adds up with `reduce = node`.
namespace sluice::engine::cuda {

/// What ranks of this node have answered of one token of a home: their sum, in the order of their places, rounded as it
/// travels; the routes that are in it; and, if they come, weights of routes. All of it was there before the item, and is read at
/// home when it has been counted.
template <typename Shape>
class FerrySum {
 public:
  /// Finds out whose answers count.
  __device__ __forceinline__ FerrySum(const FerryArgs& f, uint4 item, int lane)
      : f_(f), of_(item), tag_(item.x), parts_(f.windows[f.rank] + f.partials[of_.source]) {
    // Lane i: the i-th place.
    const bool asked = lane < kPeersMax && ((item.z >> (16 + lane)) & 1U) != 0;
    uint4 answer = {};
    if (asked) answer = load_packet(part(lane) + answer_offset());
    const bool come = asked && (answer.x == tag_ || mutant(KernelMutant::stale_partials_taken));
    all_ = lanes_with(come);
    if (all_ == 0) return;
    // Calls that differ cannot be added up: home gets what is like the first.
    const std::uint32_t some = lanes_with(come && answer.y != 0);
    const int first = __ffs(static_cast<int>(some != 0 ? some : all_)) - 1;
    signature_ = __shfl_sync(~0U, answer.z, first);
    const bool counts = come && answer.y != 0 && answer.z == signature_;
    given_ = lanes_with(counts);
    routes_ = __reduce_or_sync(~0U, counts ? answer.y : 0U);
    rows_ = __reduce_or_sync(~0U, counts ? answer.w : 0U);
  }

  __device__ __forceinline__ void carry(FerryTeam team, int lane) const {
    if (all_ == 0) return;
    if (team.leads()) store_answer(lane);
    if (given_ == 0) return;
    if (of_.what == FerryItem::kSumOfF32) return store_row<4>(DType::f32, team, lane);
    store_row<2>(of_.what == FerryItem::kSumOfF16 ? DType::f16 : DType::bf16, team, lane);
  }

 private:
  __device__ __forceinline__ const std::byte* part(int place) const {
    return parts_ + place * f_.partial_stride;
  }
  __device__ __forceinline__ std::uint32_t answer_offset() const {
    return f_.layout.answer(of_.bank, of_.token);
  }

  /// And weights. Pairs with the loads of LaneView, by way of the count.
  __device__ __forceinline__ void store_answer(int lane) const {
    std::byte* const to = f_.lanes_out[of_.source];
    if (lane == 0) {
      store_packet(to + answer_offset(), make_uint4(tag_, routes_, signature_, rows_));
    }
    if (lane >= f_.layout.weight_packets()) return;
    const std::uint32_t at = f_.layout.row_weight(of_.bank, of_.token) +
                             static_cast<std::uint32_t>(lane) * window::kPacketBytes;
    uint4 weights = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (std::uint32_t left = given_; left != 0; left &= left - 1) {
      const std::byte* const from = part(__ffs(static_cast<int>(left)) - 1);
      const uint4 v = load_packet(from + at);
      if (v.x != tag_) continue;  // None were given.
      const std::uint32_t own =
          load_packet(from + answer_offset()).y >> (lane * window::kPacketWeights);
      weights.x = tag_;
      if ((own & 1U) != 0) weights.y = v.y;
      if ((own & 2U) != 0) weights.z = v.z;
      if ((own & 4U) != 0) weights.w = v.w;
    }
    if (weights.x == tag_) store_packet(to + at, weights);
  }

  /// This warp's part of the row: pieces of two steps, where they are short, of two ranks at a time.
  template <int kBytes>
  __device__ __forceinline__ void store_row(DType dtype, FerryTeam team, int lane) const {
    constexpr int kRowsAtOnce = Shape::kEach / 4;
    using Packets = Elements<kBytes, kBytes == 2 ? 2 : 1>;
    constexpr int kSpan = Packets::kElements / kStepElements;
    const std::uint32_t slot =
        f_.layout.combine_row(of_.bank, of_.token * f_.layout.shape().combine_rows_per_token);
    const int hidden = f_.hidden;
    std::byte* const to = f_.row_lanes_out[of_.source] + slot;
#pragma unroll 1
    for (int begin = team.member * Packets::kElements; begin < hidden;
         begin += team.size * Packets::kElements) {
      const int element = begin + lane * kLaneElements;
      const std::byte* const from = parts_ + slot + within(element, hidden) * kBytes;
      float sum[kSpan][kLaneElements] = {};
#pragma unroll 1
      for (std::uint32_t left = given_; left != 0;) {
        Packets packets[kRowsAtOnce];
        bool exists[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          exists[i] = left != 0;
          if (!exists[i]) continue;
          const int place = __ffs(static_cast<int>(left)) - 1;
          packets[i].take(from + place * f_.partial_stride, element, hidden);
          left &= left - 1;
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          if (!exists[i]) continue;
#pragma unroll
          for (int j = 0; j < kSpan; ++j) {
            float v[kLaneElements];
            packets[i].floats(j, v, dtype);
#pragma unroll
            for (int e = 0; e < kLaneElements; ++e) sum[j][e] = sum[j][e] + v[e];
          }
        }
      }
      Packets packets;
#pragma unroll
      for (int j = 0; j < kSpan; ++j) packets.encode(j, sum[j], dtype);
      packets.push(to + element * kBytes, element, hidden);
    }
  }

  const FerryArgs& f_;
  FerryTokenOf of_;
  std::uint32_t tag_;
  const std::byte* parts_;    // What the rank at the first place has answered.
  std::uint32_t all_ = 0;     // Places that have.
  std::uint32_t given_ = 0;   // Those whose answers count,
  std::uint32_t routes_ = 0;  // and what they say together.
  std::uint32_t rows_ = 0;
  std::uint32_t signature_ = 0;
};

}  // namespace sluice::engine::cuda
