// SPDX-License-Identifier: MIT
#include "engine/cuda/elements.cuh"
#include "nccl_tasks.cuh"

/// The NCCL peer's dispatch: records from tokens, rows from records.
namespace sluice::bench::nccl {
namespace {

using engine::cuda::e4m3_of;
using engine::cuda::floats_of_halves;
using engine::cuda::load16;
using engine::cuda::store16;

constexpr int kUnit = 512;         // elements
constexpr int kLaneElements = 16;  // fp8: those of one packet
constexpr int kUnitGroups = kUnit / RecordForm::kGroup;
constexpr int kGroupLanes = RecordForm::kGroup / kLaneElements;

/// One unit of an encoded row, by a warp. Packet j of lane i is packet 32 * j + i of the unit; each
/// lane has the scale of the group that its packet is part of.
template <bool kFp8>
struct Unit {
  static constexpr int kPackets = kFp8 ? 1 : 2;
  uint4 packet[kPackets];
  float scale;

  static __device__ int byte_of(int unit, int packet, int lane) {
    return ((unit * kPackets + packet) * 32 + lane) * 16;
  }
  /// Of the word that this lane has to write among the row's scales, or -1.
  static __device__ int scale_of(const RecordForm& form, int unit, int lane) {
    const int word = unit * kUnitGroups + lane / kGroupLanes;
    return kFp8 && lane % kGroupLanes == 0 && word < form.scale_words ? word : -1;
  }

  __device__ void encode(const RecordForm& form, const std::byte* x, int unit, int lane);
  __device__ void load(const RecordForm& form, const std::byte* record, int unit, int lane) {
#pragma unroll
    for (int j = 0; j < kPackets; ++j) {
      const int byte = byte_of(unit, j, lane);
      if (byte < form.row_bytes) packet[j] = load16(record + byte);
    }
    const int word = scale_of(form, unit, lane);
    if (word >= 0) scale = *reinterpret_cast<const float*>(record + form.scales_at + 4 * word);
  }
  __device__ void store(const RecordForm& form, std::byte* row, std::byte* scales, int unit,
                        int lane) const {
#pragma unroll
    for (int j = 0; j < kPackets; ++j) {
      const int byte = byte_of(unit, j, lane);
      if (byte < form.row_bytes) store16(row + byte, packet[j]);
    }
    const int word = scale_of(form, unit, lane);
    if (word >= 0) *reinterpret_cast<float*>(scales + 4 * word) = scale;
  }
  /// To all rows of a received record.
  __device__ void place(const RecordForm& form, const Target& to, int record, int unit,
                        int lane) const {
    const std::int32_t* rows = to.row + std::int64_t{record} * to.width;
    for (int i = 0; i < to.width; ++i) {
      const int row = rows[i];
      if (row < 0) continue;
      store(form, to.rows + row * to.row_stride, to.scales + row * to.scale_stride, unit, lane);
    }
  }
};

template <>
__device__ void Unit<false>::encode(const RecordForm& form, const std::byte* x, int unit,
                                    int lane) {
  load(form, x, unit, lane);  // x is bf16 already.
}

template <>
__device__ void Unit<true>::encode(const RecordForm& form, const std::byte* x, int unit, int lane) {
  const int element = unit * kUnit + lane * kLaneElements;
  float v[kLaneElements] = {};
  if (element < form.hidden) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      floats_of_halves(load16(x + 2 * element + 16 * i), DType::bf16,
                       *reinterpret_cast<float(*)[8]>(&v[8 * i]));
    }
  }
  float amax = numeric::kAmaxFloor;
#pragma unroll
  for (const float value : v) amax = fmaxf(amax, fabsf(value));
#pragma unroll
  for (int step = 1; step < kGroupLanes; step *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
  }
  scale = numeric::fp8_scale(amax, ScaleForm::f32);
  const float multiplier = numeric::kE4m3Max / amax;
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = e4m3_of(v[4 * i] * multiplier, v[4 * i + 1] * multiplier, v[4 * i + 2] * multiplier,
                       v[4 * i + 3] * multiplier);
  }
  packet[0] = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ void put_meta(const PackArgs& a, int token, std::byte* record, int lane) {
  const int top_k = a.form.top_k;
  auto* words = reinterpret_cast<std::uint32_t*>(record + a.form.meta_at);
  if (lane < RecordForm::kMetaHead / 4) {
    words[lane] = lane == 0 ? static_cast<std::uint32_t>(token) : 0U;
  }
  if (lane >= top_k) return;
  const std::int64_t route = std::int64_t{token} * top_k + lane;
  words += RecordForm::kMetaHead / 4;
  words[lane] = static_cast<std::uint32_t>(a.ids[route]);
  words[top_k + lane] = __float_as_uint(a.weights[route]);
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArgs a) {
  const auto [token, unit] = task_of(units_of(a.form, kUnit));
  if (token >= a.tokens) return;  // A whole warp.
  const int lane = lane_of_thread();
  Unit<kFp8> piece;
  piece.encode(a.form, a.x + std::int64_t{token} * a.form.hidden * 2, unit, lane);
  const std::int32_t* place = a.place + std::int64_t{token} * a.ranks;
  for (int rank = 0; rank < a.ranks; ++rank) {
    const int number = place[rank];
    if (number < 0) continue;
    const bool own = rank == a.rank;
    std::byte* record = (own ? a.received : a.send) + std::int64_t{number} * a.form.stride;
    if (unit == 0) put_meta(a, token, record, lane);
    if (own) {
      piece.place(a.form, a.target, number, unit, lane);
    } else {
      piece.store(a.form, record, record + a.form.scales_at, unit, lane);
    }
  }
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ UnpackArgs a) {
  const auto [index, unit] = task_of(units_of(a.form, kUnit));
  if (index >= a.others.count) return;
  const int lane = lane_of_thread();
  const int record = record_of(a.others, index);
  Unit<kFp8> piece;
  piece.load(a.form, record_at(a.form, a.received, record), unit, lane);
  piece.place(a.form, a.target, record, unit, lane);
}

}  // namespace

int launch_pack(const PackArgs& args, void* stream) {
  return launch(args.form.fp8 ? pack_kernel<true> : pack_kernel<false>, args, args.tokens,
                units_of(args.form, kUnit), stream);
}

int launch_unpack(const UnpackArgs& args, void* stream) {
  return launch(args.form.fp8 ? unpack_kernel<true> : unpack_kernel<false>, args, args.others.count,
                units_of(args.form, kUnit), stream);
}

}  // namespace sluice::bench::nccl
