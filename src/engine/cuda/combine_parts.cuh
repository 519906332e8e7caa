// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/elements.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "sluice/handle.hpp"

/// What both halves of combine are made of.
namespace sluice::engine::cuda {

/// Elements that a lane handles at a time, and a warp.
inline constexpr int kLaneElements = 8;
static_assert(kStepElements == 32 * kLaneElements);

/// One record as the handle has it: lane k has route k.
struct Record {
  int home = -1;
  int token = 0;
  int row = Handle::kRowAbsent;
  int expert = -1;
  float weight = 0.0F;
};

__device__ __forceinline__ Record read_record(const HandleArrays& handle, const Geometry& g,
                                              int index, int lane) {
  Record record;
  record.home = handle.record_rank()[index];
  record.token = handle.record_token()[index];
  if (lane < g.top_k) {
    const std::int64_t at = std::int64_t{index} * g.top_k + lane;
    record.row = handle.route_rows()[at];
    record.expert = handle.local_ids()[at];
    record.weight = handle.local_weights()[at];
  }
  return record;
}

__device__ __forceinline__ std::uint32_t lanes_with(bool condition) {
  return __ballot_sync(~0U, condition);
}

/// Of the routes in `mask`, those to the expert of lane `k`.
__device__ __forceinline__ std::uint32_t routes_to_same(int expert, std::uint32_t mask, int k) {
  const int wanted = __shfl_sync(~0U, expert, k);
  return lanes_with(expert == wanted) & mask;
}

/// Lane k: the f32 sum, k ascending from +0, of the weights of the routes in `mask` that lead to
/// its expert; its own weight if there is no other.
__device__ __forceinline__ float merged_weight(int expert, float weight, std::uint32_t mask,
                                               int lane) {
  float sum = 0.0F;
  int routes = 0;
#pragma unroll 1
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const int other = __shfl_sync(~0U, expert, k);
    const float w = __shfl_sync(~0U, weight, k);
    if (other == expert) {
      sum += w;
      ++routes;
    }
  }
  return routes > 1 && ((mask >> lane) & 1U) != 0 ? sum : weight;
}

/// Sum over the lanes in `mask`, ascending from +0; the same in all lanes.
__device__ __forceinline__ float ordered_sum(float value, std::uint32_t mask) {
  float sum = 0.0F;
#pragma unroll 1
  for (; mask != 0; mask &= mask - 1) {
    sum += __shfl_sync(~0U, value, __ffs(static_cast<int>(mask)) - 1);
  }
  return sum;
}

/// Eight elements of the combine codec: one packet of halves, or two of floats.
template <int kCodec>
struct Packets {
  static constexpr int kCount = kCodec / 2;
  uint4 packet[kCount];

  __device__ static std::byte* at(std::byte* row, int element, int i) {
    return row + element * kCodec + i * 16;
  }
  __device__ void encode(const float (&v)[kLaneElements], DType dtype) {
    if constexpr (kCodec == 2) {
      packet[0] = halves_of_floats(v, dtype);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        packet[i] =
            never_empty(make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
                                   __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3])),
                        nan_word(DType::f32));
      }
    }
  }
  __device__ void decode(float (&v)[kLaneElements], DType dtype) const {
    if constexpr (kCodec == 2) {
      floats_of_halves(packet[0], dtype, v);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        v[4 * i] = __uint_as_float(packet[i].x);
        v[4 * i + 1] = __uint_as_float(packet[i].y);
        v[4 * i + 2] = __uint_as_float(packet[i].z);
        v[4 * i + 3] = __uint_as_float(packet[i].w);
      }
    }
  }
  __device__ void load(std::byte* row, int element) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) packet[i] = load_packet(at(row, element, i));
  }
  __device__ void store(std::byte* row, int element) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_packet(at(row, element, i), packet[i]);
  }
  __device__ void clear(std::byte* row, int element) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) clear_packet(at(row, element, i));
  }
  __device__ bool empty() const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) any = any || packet[i].w == window::kPoison;
    return any;
  }
};

/// Eight elements of y, as loaded.
template <int kInput, bool kAligned>
struct Elements {
  uint4 words[kInput / 2];
  __device__ void load(const std::byte* at) {
#pragma unroll
    for (int i = 0; i < kInput / 2; ++i) words[i] = load_bytes<kAligned, kInput>(at + 16 * i);
  }
  __device__ void floats(float (&v)[kLaneElements], DType dtype) const {
    if constexpr (kInput == 2) {
      floats_of_halves(words[0], dtype, v);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[4 * i] = __uint_as_float(words[i].x);
        v[4 * i + 1] = __uint_as_float(words[i].y);
        v[4 * i + 2] = __uint_as_float(words[i].z);
        v[4 * i + 3] = __uint_as_float(words[i].w);
      }
    }
  }
};

/// What both halves of one operation know.
struct Combine {
  const CombineArgs& a;
  const Geometry& g;
  HandleArrays handle;
  std::uint64_t signature;
  std::uint32_t tag;
  std::uint32_t suspects;
  int bank;
  std::uint8_t layout;  // of the rows
  Patience patience;

  __device__ Combine(const CombineArgs& args, Progress progress, std::uint64_t signature_,
                     std::uint32_t suspects_, std::uint8_t layout_)
      : a(args),
        g(args.geometry),
        handle{const_cast<std::byte*>(args.handle), &args.handle_layout},
        signature(signature_),
        tag(window::tag_of(progress.epoch + 1)),
        suspects(suspects_),
        bank(static_cast<int>(progress.bank)),
        layout(layout_),
        patience(args.geometry, args.timeout_ns) {}

  __device__ int slot(int token, int k) const {
    return token * g.layout.shape().combine_rows_per_token + k;
  }

  /// Between two polls for answers of `ranks`, of whom those in `late` have said nothing: which of
  /// these will say nothing. Sets `lost` if something that was announced does not come.
  __device__ __forceinline__ std::uint32_t give_up(std::uint32_t ranks, std::uint32_t late) {
    if (!patience.weary()) return 0;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool silent = false;
    bool over = false;
    if (((ranks >> lane) & 1U) != 0) {
      const uint4 cell =
          load_packet(in_at(g, g.layout.cell(lane, protocol::CellKind::combine, bank)));
      silent = cell.x == tag &&
               (static_cast<int>(cell.y) < 0 || cell.z != static_cast<std::uint32_t>(signature) ||
                cell.w != static_cast<std::uint32_t>(signature >> 32));
      over = patience.look(lane);
    }
    const std::uint32_t gone = lanes_with(over);
    lost = (gone & ~late) != 0;
    return (gone | lanes_with(silent)) & late;
  }

  bool lost = false;
};

/// The weights that home sends for one of its tokens: lane k has that of route k.
__device__ __forceinline__ float await_weight(Combine& c, int home, int token, int lane) {
  const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
  const std::byte* at = in_at(c.g, c.g.layout.weight(home, c.bank, token)) + packet * 16;
  uint4 v = load_packet(at);  // Pairs with send_weights() of home.
  while (!__all_sync(~0U, v.x == c.tag)) {
    if (__any_sync(~0U, c.patience.spent(home))) return 0.0F;
    v = load_packet(at);
  }
  const int i = lane % window::kPacketWeights;
  return __uint_as_float(i == 0 ? v.y : (i == 1 ? v.z : v.w));
}

/// One f32 per route into packets of a peer's lane.
__device__ __forceinline__ void send_weights_to(const Combine& c, std::byte* out, float value,
                                                int lane) {
  float words[window::kPacketWeights];
#pragma unroll
  for (int i = 0; i < window::kPacketWeights; ++i) {
    words[i] = __shfl_sync(~0U, value, (lane * window::kPacketWeights + i) & 31);
  }
  if (lane < c.g.layout.weight_packets()) {
    store_packet(out + lane * 16, make_uint4(c.tag, __float_as_uint(words[0]),
                                             __float_as_uint(words[1]), __float_as_uint(words[2])));
  }
}

}  // namespace sluice::engine::cuda
