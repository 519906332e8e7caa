// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/elements.cuh"
#include "engine/cuda/operation.cuh"
#include "engine/cuda/routes.cuh"

/// dispatch, send half: every token's row is encoded once per piece, in registers, and pushed to
/// each rank that it goes to. Heralds send the headers, and one of them counts and cells.
namespace sluice::engine::cuda {

/// Elements of one packet of fp8.
inline constexpr int kFp8Elements = 16;

/// The scales of common calls: f32, one for so many elements, those of a unit in one packet.
inline constexpr int kCommonGroup = 128;
static_assert(window::kUnitElements / kCommonGroup * 4 == window::kPacketBytes);

/// Scales of one unit. Groups have a power of two of elements.
__device__ __forceinline__ int groups_per_unit(const DispatchArgs& a) {
  return window::kUnitElements >> (31 - __clz(a.codec.group));
}

/// Encodings of one unit of a row of a token by one warp. kVectors: packets per lane; packet j of lane i is
/// packet 32 * j + i of the unit. kOutput: bytes of an element of what comes out; if 1, there are scales as well: kGiven
/// says whether lane i of the source has packet i of them, or every lane the scale of its own elements. kVerbatim: rows
/// travel as they are. kQuantises: from rows of kInputBytes an element to fp8. kCommon: of common calls. kNodes: whether there may
/// be other nodes.
template <int kInput, bool kCommonCase,
          bool kOtherNodes = !kCommonCase>  // bytes of an element of x
struct Fp8Encoder {
  static constexpr bool kCommon = kCommonCase;
  static constexpr bool kNodes = kOtherNodes;
  static constexpr int kOutput = 1;
  static constexpr bool kGiven = false;
  static constexpr bool kVerbatim = false;
  static constexpr bool kQuantises = true;
  static constexpr int kInputBytes = kInput;
  static constexpr int kVectors = 1;
  static constexpr int kElements = kFp8Elements;
  struct Source {
    uint4 words[kInput];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int /*token*/, int unit,
                              int lane, Source& source) {
    const int element = unit * window::kUnitElements + lane * kElements;
#pragma unroll
    for (int i = 0; i < kInput; ++i) {
      source.words[i] = make_uint4(0, 0, 0, 0);
      if (element < a.geometry.hidden) {
        source.words[i] = load_bytes<kInput>(row + element * kInput + 16 * i, kCommon || a.aligned);
      }
    }
  }
  /// The same of a unit in shared memory, where all of it may be read: what is behind the row's end counts as zero.
  static __device__ void read(SharedAt shared, int elements, int lane, Source& source) {
#pragma unroll
    for (int i = 0; i < kInput; ++i) {
      source.words[i] = make_uint4(0, 0, 0, 0);
      if (lane * kElements < elements) {
        source.words[i] = load_shared(shared + lane * kElements * kInput + 16 * i);
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
        floats_of_halves(word, kCommon ? DType::bf16 : a.x_dtype,
                         *reinterpret_cast<float(*)[8]>(&v[8 * i]));
      } else {
        v[4 * i] = __uint_as_float(word.x);
        v[4 * i + 1] = __uint_as_float(word.y);
        v[4 * i + 2] = __uint_as_float(word.z);
        v[4 * i + 3] = __uint_as_float(word.w);
      }
    }
    // By pairs, so that the chain is short. fmaxf ignores NaN.
    float most[kElements / 2];
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) {
      most[i] = fmaxf(fabsf(v[2 * i]), fabsf(v[2 * i + 1]));
    }
#pragma unroll
    for (int step = kElements / 4; step != 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < step; ++i) most[i] = fmaxf(most[i], most[i + step]);
    }
    float amax = fmaxf(numeric::kAmaxFloor, most[0]);
    if constexpr (kCommon) {
#pragma unroll
      for (int step = 1; step < kCommonGroup / kElements; step *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
      }
    } else {
      const int lanes = a.codec.group / kElements;  // of one group: 2 to 16
#pragma unroll 1
      for (int step = 1; step < lanes; step *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
      }
    }
    const ScaleForm form = kCommon ? ScaleForm::f32 : a.codec.scale_form;
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
template <int kSize, bool kCommonCase, bool kOtherNodes = !kCommonCase>
struct RawEncoder {
  static constexpr bool kCommon = kCommonCase;
  static constexpr bool kNodes = kOtherNodes;
  static constexpr bool kGiven = false;
  static constexpr bool kVerbatim = true;
  static constexpr bool kQuantises = false;
  static constexpr int kOutput = kSize;
  static constexpr int kVectors = kSize;
  struct Source {
    uint4 packets[kVectors];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int /*token*/, int unit,
                              int lane, Source& source) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int byte = ((unit * kVectors + j) * 32 + lane) * 16;
      source.packets[j] = make_uint4(0, 0, 0, 0);
      if (byte < a.row_bytes)
        source.packets[j] = load_bytes<kSize>(row + byte, kCommon || a.aligned);
    }
  }
  static __device__ void encode(const DispatchArgs& a, const Source& source,
                                uint4 (&out)[kVectors]) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      out[j] = never_empty(source.packets[j], nan_word(kCommon ? DType::bf16 : a.x_dtype));
    }
  }
};

/// Rows that change between bf16, f16 and f32. Rare: always by elements.
template <int kSize>
struct ConvertEncoder {
  static constexpr bool kCommon = false;
  static constexpr bool kNodes = true;
  static constexpr bool kGiven = false;
  static constexpr bool kVerbatim = false;
  static constexpr bool kQuantises = false;
  static constexpr int kOutput = kSize;
  static constexpr int kVectors = kSize;
  static constexpr int kElements = 16 / kSize;
  struct Source {
    float values[kVectors][kElements];
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int /*token*/, int unit,
                              int lane, Source& source) {
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
  static __device__ void encode(const DispatchArgs& a, const Source& source,
                                uint4 (&out)[kVectors]) {
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

/// Word `word` of the scales of a unit as they travel, of an x that is encoded already. Unused words are zero.
__device__ __forceinline__ std::uint32_t given_scale_word(const DispatchArgs& a,
                                                          const std::byte* scales, int unit,
                                                          int word) {
  const int groups = groups_per_unit(a);
  const int all = (a.geometry.hidden + a.codec.group - 1) >> (31 - __clz(a.codec.group));
  const bool packed = a.codec.scale_form == ScaleForm::ue8m0;
  const int first = unit * groups + (packed ? 4 * word : word);
  if (first >= min(all, (unit + 1) * groups)) return 0;
  const std::uint32_t value = *reinterpret_cast<const std::uint32_t*>(
      scales + (packed ? first / 4 : first) * a.x_scales.element_stride);
  if (!packed) return value;
  // Of two in a unit, half a word. What is behind the last one is not ours to send.
  const int count = min(min(groups, 4), all - first);
  return value >> (8 * (first % 4)) & (count == 4 ? ~0U : (1U << (8 * count)) - 1U);
}

/// A packet of them.
__device__ __forceinline__ uint4 given_packet(const DispatchArgs& a, int token, int unit,
                                              int packet) {
  const std::byte* const scales = row_at(a.x_scales, token);
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = given_scale_word(a, scales, unit, packet * 4 + i);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Rows that are encoded already.
struct GivenEncoder {
  static constexpr bool kCommon = false;
  static constexpr bool kNodes = true;
  static constexpr int kOutput = 1;
  static constexpr bool kGiven = true;
  static constexpr bool kVerbatim = true;
  static constexpr bool kQuantises = false;
  static constexpr int kVectors = 1;
  struct Source {
    uint4 packet;
    uint4 scales;
  };
  static __device__ void load(const DispatchArgs& a, const std::byte* row, int token, int unit,
                              int lane, Source& source) {
    const int byte = (unit * 32 + lane) * 16;
    source.packet = make_uint4(0, 0, 0, 0);
    if (byte < a.row_bytes) source.packet = load_bytes<1>(row + byte, a.aligned);
    source.scales = make_uint4(0, 0, 0, 0);
    if (lane < a.scale_packets) source.scales = given_packet(a, token, unit, lane);
  }
  static __device__ void encode(const DispatchArgs& a, const Source& source, uint4 (&out)[kVectors],
                                uint4& scales) {
    // Four NaN become four others; a scale that is NaN another, or of ue8m0 the largest number.
    out[0] = never_empty(source.packet, 0x7F7F7F7FU);
    const bool packed = a.codec.scale_form == ScaleForm::ue8m0;
    scales = never_empty(source.scales, packed ? 0xFEFFFFFFU : nan_word(DType::f32));
  }
};

/// The scales of one unit, gathered into packets: lane i has packet i. Unused words are zero.
template <bool kCommon>
__device__ __forceinline__ uint4 gather_scales(const DispatchArgs& a, float scale, int lane) {
  if constexpr (kCommon) {  // One packet.
    std::uint32_t packet[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packet[i] = __float_as_uint(__shfl_sync(~0U, scale, i * (kCommonGroup / kFp8Elements)));
    }
    return make_uint4(packet[0], packet[1], packet[2], packet[3]);
  }
  const int groups = groups_per_unit(a);
  int words = groups;  // Word w is that of lane w * stride.
  int stride = a.codec.group / kFp8Elements;
  std::uint32_t word = __float_as_uint(scale);
  if (a.codec.scale_form == ScaleForm::ue8m0) {
    const std::uint32_t exponent = numeric::ue8m0_from_f32(scale);
    word = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int group = lane * 4 + b;
      const std::uint32_t value = __shfl_sync(~0U, exponent, group * stride & 31);
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

/// Where the weight of route k of a token is, if weights are given.
__device__ __forceinline__ const float* weight_at(const DispatchArgs& a, int token, int k) {
  return a.weights + token * a.weights_stride[0] + k * a.weights_stride[1];
}

/// Lane k: the weight of route k of a token.
__device__ __forceinline__ float route_weight(const DispatchArgs& a, int token, int lane) {
  if (a.weights == nullptr || lane >= a.geometry.top_k) return 1.0F;
  return *weight_at(a, token, lane);
}

/// One unit of a token's row, encoded.
template <typename Encoder>
struct Unit {
  uint4 packets[Encoder::kVectors];
  uint4 scales;

  __device__ __forceinline__ void encode(const DispatchArgs& a,
                                         const typename Encoder::Source& source, int lane) {
    if constexpr (Encoder::kOutput != 1) {
      Encoder::encode(a, source, packets);
    } else if constexpr (Encoder::kGiven) {
      Encoder::encode(a, source, packets, scales);
    } else {
      float scale = 0.0F;
      Encoder::encode(a, source, packets, scale);
      scales = gather_scales<Encoder::kCommon>(a, scale, lane);
    }
  }
  /// Into a slot, or a stage.
  __device__ __forceinline__ void store(const DispatchArgs& a, std::byte* at, int unit,
                                        int lane) const {
    // Common rows of fp8 have whole units only, with one packet of scales each.
    constexpr bool kWhole = Encoder::kCommon && Encoder::kOutput == 1;
    const int scale_packets = kWhole ? 1 : a.scale_packets;
    const int first_byte = (unit * Encoder::kVectors * 32 + lane) * 16;
    const int scale_byte = a.row_bytes + (unit * scale_packets + lane) * 16;
#pragma unroll
    for (int j = 0; j < Encoder::kVectors; ++j) {
      const int byte = first_byte + j * 512;
      if (kWhole || byte < a.row_bytes) store_packet(at + byte, packets[j]);
    }
    if constexpr (Encoder::kOutput == 1) {
      if (lane < scale_packets) store_packet(at + scale_byte, scales);
    }
  }
  /// To the peers in `ranks`.
  __device__ __forceinline__ void send(const DispatchArgs& a, std::uint32_t ranks, int token,
                                       int unit, int bank, int lane) const {
    const Geometry& g = a.geometry;
    // Lane r: the record at rank r.
    const int own_peer = lane < g.ranks ? lane : 0;
    const std::uint32_t row = g.layout.dispatch_row(bank, token);
    std::byte* const own =
        Encoder::kNodes ? row_out_at(g, own_peer, row) : out_at(g, own_peer, row);
    // Two at a time, so that the second one's address need not be waited for.
    for_each_two_peers(g, ranks, [&](int peer, int next) {
      std::byte* const at = pointer_of(own, peer);
      std::byte* const next_at = pointer_of(own, max(next, 0));
      store(a, at, unit, lane);
      if (next >= 0) store(a, next_at, unit, lane);
    });
  }
};

/// What everything that one operation sends carries.
struct Stamp {
  std::uint32_t tag;
  std::uint32_t signature;
  int bank;
};

/// The third word of a header: local expert + 1 (0: elsewhere), position, and tokens of the source - 1.
namespace header_word {
inline constexpr int kExpertBits = 13;
inline constexpr int kPositionBits = 10;
inline constexpr int kTokensShift = kExpertBits + kPositionBits;
/// Position of a further route to the same expert, which has no row of its own.
inline constexpr std::uint32_t kNoPosition = (1U << kPositionBits) - 1U;
static_assert(kMaxExperts < 1 << kExpertBits && kTokensMax <= kNoPosition &&
              kTokensMax - 1 < 1 << (32 - kTokensShift));

__device__ __forceinline__ int local_expert(std::uint32_t word) {
  return static_cast<int>(word & ((1U << kExpertBits) - 1U)) - 1;
}
__device__ __forceinline__ std::uint32_t position(std::uint32_t word) {
  return word >> kExpertBits & kNoPosition;
}
__device__ __forceinline__ int tokens(std::uint32_t word) {
  return static_cast<int>(word >> kTokensShift) + 1;
}
}  // namespace header_word

/// Route `k` of a token, as its header has it.
struct HeaderRoute {
  Owner owner;           // below zero: none
  std::uint32_t place;   // local expert and position
  std::uint32_t tokens;  // of this rank, in their place
  float weight;
};

/// A packet of a record's header, at every rank in `ranks`: tag, weight, header_word, signature.
__device__ __forceinline__ void send_route(const Geometry& g, const HeaderRoute& route, int token,
                                           int k, std::uint32_t ranks, const Stamp& stamp) {
  const std::uint32_t at = g.layout.route(stamp.bank, token, k);
#pragma unroll 1
  for (std::uint32_t left = ranks; left != 0; left &= left - 1) {
    const int peer = __ffs(static_cast<int>(left)) - 1;
    const bool here = route.owner.rank == peer;
    store_packet(out_at(g, peer, at),
                 make_uint4(stamp.tag, here ? __float_as_uint(route.weight) : 0U,
                            (here ? route.place : 0U) | route.tokens, stamp.signature));
  }
}

__device__ __forceinline__ HeaderRoute header_route(const Geometry& g, int id, int position,
                                                    bool duplicate, float weight, int tokens) {
  HeaderRoute route;
  route.owner = id < 0 ? Owner{-1, -1} : owner_of(g, id);
  route.place = static_cast<std::uint32_t>(route.owner.local + 1) |
                (duplicate ? header_word::kNoPosition : static_cast<std::uint32_t>(position))
                    << header_word::kExpertBits;
  route.tokens = static_cast<std::uint32_t>(tokens - 1) << header_word::kTokensShift;
  route.weight = weight;
  return route;
}

/// Headers of the records that this herald serves: a thread per route. `weight`: of this thread's first
/// route.
template <bool kCommon>
__device__ __forceinline__ void send_headers(const DispatchArgs& a, const RouteTable& table,
                                             bool repeats, int first, int step, float weight,
                                             const Stamp& stamp, std::uint32_t skipped) {
  const Geometry& g = a.geometry;
  const int places = table.tokens << table.shift;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int at = first; at - lane < places; at += step) {
    const int token = at >> table.shift;
    const int k = at & ((1 << table.shift) - 1);
    const bool exists = at < places && k < g.top_k;
    const int id = exists ? table.ids[at] : kNoRoute;
    // Of the routes of one token to one expert, only the first has a row.
    bool duplicate = false;
    if (repeats) {
      const std::uint32_t same = __match_any_sync(~0U, id < 0 ? -1 - lane : id | token << 16);
      duplicate = id >= 0 && __ffs(static_cast<int>(same)) - 1 < lane;
    }
    if (!exists) continue;
    if (at != first) weight = route_weight(a, token, k);
    const HeaderRoute route =
        header_route(g, id, id < 0 ? 0 : table.before(id, token), duplicate, weight, table.tokens);
    send_route(g, route, token, k, table.masks[token] & ~skipped, stamp);
  }
}

/// The same without notes, where positions cost a walk over all routes: a token by a warp, from its
/// `first` one on. Rare.
template <bool kCommon>
__device__ __noinline__ void send_headers_slowly(const DispatchArgs* a, const std::uint16_t* masks,
                                                 int tokens, int first, int step, Stamp stamp,
                                                 std::uint32_t skipped) {
  const Geometry& g = a->geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int token = first; token < tokens; token += step) {
    const int id = load_route<kCommon>(*a, token, lane);
    const int before = count_before<kCommon>(a, token, id);
    const HeaderRoute route =
        header_route(g, id, before, is_duplicate(id, lane), route_weight(*a, token, lane), tokens);
    if (lane < g.top_k) {
      send_route(g, route, token, lane, masks[token] & ~skipped, stamp);
    }
    __syncwarp();
  }
}

/// The number of rows of every expert, by a whole block: tag, number, half the signature. In a cached
/// dispatch nobody looks at the number.
__device__ __forceinline__ void send_counts(const Geometry& g, const RouteTable& table,
                                            const Stamp& stamp, std::uint32_t skipped) {
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < g.experts; expert += kBlockThreads) {
    const Owner owner = owner_of(g, expert);
    if (((skipped >> owner.rank) & 1U) != 0) continue;
    const std::uint32_t count =
        static_cast<std::uint32_t>(table.all(expert)) | (stamp.signature & 0xFFFF0000U);
    auto* at = reinterpret_cast<std::uint64_t*>(
        out_at(g, owner.rank, g.layout.count(stamp.bank, owner.local)));
    store_relaxed(at, stamp.tag | static_cast<std::uint64_t>(count) << 32);
  }
}

/// The second word of a count of this signature says how many rows; of another, none.
__device__ __forceinline__ int count_in(std::uint32_t word, std::uint32_t signature) {
  return ((word ^ signature) & 0xFFFF0000U) == 0 ? static_cast<int>(word & 0xFFFFU) : 0;
}

}  // namespace sluice::engine::cuda
