// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/elements.cuh"
#include "engine/cuda/routes.cuh"
#include "engine/cuda/waiting.cuh"

/// dispatch, send half: every token's row is encoded once per piece, in registers, and pushed to
/// each rank that it goes to.
namespace sluice::engine::cuda {

/// Elements of one packet of fp8.
inline constexpr int kFp8Elements = 16;

/// Encodings of one unit of a row by one warp. kVectors: packets per lane; packet j of lane i is
/// packet 32 * j + i of the unit.
template <int kInput, bool kAlignedRows>  // bytes of an element of x
struct Fp8Encoder {
  static constexpr bool kAligned = kAlignedRows;
  static constexpr int kOutput = 1;
  static constexpr int kVectors = 1;
  static constexpr int kElements = kFp8Elements;
  struct Source {
    uint4 words[kInput];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int unit, int lane,
                              Source& source) {
    const int element = unit * window::kUnitElements + lane * kElements;
#pragma unroll
    for (int i = 0; i < kInput; ++i) {
      source.words[i] = make_uint4(0, 0, 0, 0);
      if (element < a.geometry.hidden) {
        source.words[i] = load_bytes<kAligned, kInput>(row + element * kInput + 16 * i);
      }
    }
  }
  static __device__ void encode(const DispatchArgs& a, const Source& source, uint4 (&out)[kVectors],
                                float& scale) {
    float v[kElements];
#pragma unroll
    for (int i = 0; i < kInput; ++i) {
      const uint4 word = source.words[i];
      if constexpr (kInput == 2) {
        floats_of_halves(word, a.x_dtype, *reinterpret_cast<float(*)[8]>(&v[8 * i]));
      } else {
        v[4 * i] = __uint_as_float(word.x);
        v[4 * i + 1] = __uint_as_float(word.y);
        v[4 * i + 2] = __uint_as_float(word.z);
        v[4 * i + 3] = __uint_as_float(word.w);
      }
    }
    float amax = numeric::kAmaxFloor;
#pragma unroll
    for (const float value : v) amax = fmaxf(amax, fabsf(value));  // fmaxf ignores NaN.
    const int lanes = a.codec.group / kElements;                   // of one group: 2 to 16
#pragma unroll 1
    for (int step = 1; step < lanes; step *= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
    }
    const ScaleForm form = a.codec.scale_form;
    scale = numeric::fp8_scale(amax, form);
    float multiplier = 0.0F;  // Of an infinite amax with an infinite scale.
    if (form == ScaleForm::f32) {
      multiplier = numeric::kE4m3Max / amax;
    } else if (numeric::bits_of(amax) < numeric::kF32Infinity) {
      multiplier = numeric::fp8_multiplier(amax, scale, form);
    } else if (form == ScaleForm::ue8m0) {
      multiplier = 0x1p-127F;
    }
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = e4m3_of(v[4 * i] * multiplier, v[4 * i + 1] * multiplier,
                         v[4 * i + 2] * multiplier, v[4 * i + 3] * multiplier);
    }
    out[0] = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

/// Rows that travel as they are, of elements of kSize bytes.
template <int kSize, bool kAlignedRows>
struct RawEncoder {
  static constexpr bool kAligned = kAlignedRows;
  static constexpr int kOutput = kSize;
  static constexpr int kVectors = kSize;
  struct Source {
    uint4 packets[kVectors];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int unit, int lane,
                              Source& source) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int byte = ((unit * kVectors + j) * 32 + lane) * 16;
      source.packets[j] = make_uint4(0, 0, 0, 0);
      if (byte < a.row_bytes) source.packets[j] = load_bytes<kAligned, kSize>(row + byte);
    }
  }
  static __device__ void encode(const DispatchArgs& a, const Source& source, uint4 (&out)[kVectors],
                                float& /*scale*/) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) out[j] = never_empty(source.packets[j], nan_word(a.x_dtype));
  }
};

/// Rows that change between bf16, f16 and f32. Rare: always by elements.
template <int kSize>
struct ConvertEncoder {
  static constexpr bool kAligned = false;
  static constexpr int kOutput = kSize;
  static constexpr int kVectors = kSize;
  static constexpr int kElements = 16 / kSize;
  struct Source {
    float values[kVectors][kElements];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int unit, int lane,
                              Source& source) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int element = ((unit * kVectors + j) * 32 + lane) * kElements;
      if (element >= a.geometry.hidden) continue;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        source.values[j][i] =
            a.x_dtype == DType::f32
                ? reinterpret_cast<const float*>(row)[element + i]
                : low_half(reinterpret_cast<const std::uint16_t*>(row)[element + i], a.x_dtype);
      }
    }
  }
  static __device__ void encode(const DispatchArgs& a, const Source& source, uint4 (&out)[kVectors],
                                float& /*scale*/) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if constexpr (kSize == 2) {
        const DType dtype = a.codec.kind == CodecKind::bf16 ? DType::bf16 : DType::f16;
        out[j] = halves_of_floats(source.values[j], dtype);
      } else {
        const float* v = source.values[j];
        out[j] = never_empty(make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                                        __float_as_uint(v[2]), __float_as_uint(v[3])),
                             nan_word(DType::f32));
      }
    }
  }
};

/// The scales of one unit, gathered into packets: lane i has packet i. Unused words are zero.
__device__ __forceinline__ uint4 gather_scales(const DispatchArgs& a, float scale, int lane) {
  const int groups = window::kUnitElements / a.codec.group;
  const int lanes = a.codec.group / kFp8Elements;
  std::uint32_t word = __float_as_uint(scale);
  int words = groups;  // Word w is that of lane w * stride.
  int stride = lanes;
  if (a.codec.scale_form == ScaleForm::ue8m0) {
    const std::uint32_t exponent = numeric::ue8m0_from_f32(scale);
    word = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int group = lane * 4 + b;
      const std::uint32_t value = __shfl_sync(~0U, exponent, group * lanes & 31);
      if (group < groups) word |= value << (8 * b);
    }
    words = (groups + 3) / 4;
    stride = 1;
  }
  std::uint32_t packet[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = lane * 4 + i;
    const std::uint32_t value = __shfl_sync(~0U, word, at * stride & 31);
    packet[i] = at < words ? value : 0;
  }
  return make_uint4(packet[0], packet[1], packet[2], packet[3]);
}

/// Header of one record, at every rank that the token goes to: a packet per route.
__device__ __forceinline__ void send_header(const DispatchArgs& a, const Routes& routes, int token,
                                            int bank, std::uint32_t tag, std::uint32_t skipped,
                                            int lane) {
  const Geometry& g = a.geometry;
  const int position = position_of_route(routes, token, lane);
  int expert = -1;
  bool duplicate = false;
  float weight = 1.0F;
  if (lane < routes.top_k) {
    const std::int16_t id = routes.ids[token * routes.top_k + lane];
    expert = expert_of(id);
    duplicate = id >= 0 && (id & kDuplicateBit) != 0;
    if (a.weights != nullptr) {
      weight = a.weights[token * a.weights_stride[0] + lane * a.weights_stride[1]];
    }
  }
  const Owner owner = expert < 0 ? Owner{-1, -1} : owner_of(g, expert);
#pragma unroll 1
  for (int step = 1; step <= g.ranks; ++step) {
    int peer = g.rank + step;
    if (peer >= g.ranks) peer -= g.ranks;
    if (!routes.goes_to(token, peer) || ((skipped >> peer) & 1U) != 0) continue;
    const int slot = routes.slot(token, peer);
    if (lane < routes.top_k) {
      const bool here = owner.rank == peer;
      const uint4 packet = make_uint4(tag, here ? __float_as_uint(weight) : 0U,
                                      static_cast<std::uint32_t>(here ? owner.local + 1 : 0) |
                                          static_cast<std::uint32_t>(token) << 16,
                                      duplicate ? ~0U : static_cast<std::uint32_t>(position));
      store_packet(out_at(g, peer, g.layout.route(g.rank, bank, slot, lane)), packet);
    }
  }
}

/// One unit of a token's row.
template <typename Encoder>
__device__ __forceinline__ void send_unit(const DispatchArgs& a, const Routes& routes, int token,
                                          int unit, const typename Encoder::Source& source,
                                          int bank, std::uint32_t skipped, int lane) {
  const Geometry& g = a.geometry;
  uint4 packets[Encoder::kVectors];
  float scale = 0.0F;
  Encoder::encode(a, source, packets, scale);
  uint4 scales;
  if constexpr (Encoder::kOutput == 1) scales = gather_scales(a, scale, lane);
#pragma unroll 1
  for (int step = 1; step <= g.ranks; ++step) {
    int peer = g.rank + step;
    if (peer >= g.ranks) peer -= g.ranks;
    if (!routes.goes_to(token, peer) || ((skipped >> peer) & 1U) != 0) continue;
    std::byte* const row =
        out_at(g, peer, g.layout.dispatch_row(g.rank, bank, routes.slot(token, peer)));
#pragma unroll
    for (int j = 0; j < Encoder::kVectors; ++j) {
      const int byte = ((unit * Encoder::kVectors + j) * 32 + lane) * 16;
      if (byte < a.row_bytes) store_packet(row + byte, packets[j]);
    }
    if constexpr (Encoder::kOutput == 1) {
      if (lane < a.scale_packets) {
        store_packet(row + a.row_bytes + (unit * a.scale_packets + lane) * 16, scales);
      }
    }
  }
}

/// The numbers of rows of all experts, and the cells, by one block.
__device__ __forceinline__ void send_counts(const DispatchArgs& a, const Routes& routes,
                                            std::int32_t* histogram, int bank, std::uint32_t tag,
                                            std::uint32_t skipped) {
  const Geometry& g = a.geometry;
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < g.experts; expert += kBlockThreads) {
    histogram[expert] = 0;
  }
  __syncthreads();
  const int total = routes.tokens * routes.top_k;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < total; at += kBlockThreads) {
    const std::int16_t id = routes.ids[at];
    if (id >= 0 && (id & kDuplicateBit) == 0) atomicAdd(&histogram[id], 1);
  }
  __syncthreads();
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < g.experts; expert += kBlockThreads) {
    const Owner owner = owner_of(g, expert);
    if (((skipped >> owner.rank) & 1U) != 0) continue;
    const std::uint64_t word = tag | static_cast<std::uint64_t>(histogram[expert]) << 32;
    auto* at = reinterpret_cast<std::uint64_t*>(
        out_at(g, owner.rank, g.layout.count(g.rank, bank, owner.local)));
    store_relaxed(at, word);
  }
}

}  // namespace sluice::engine::cuda
