// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/elements.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "engine/cuda/recorder.cuh"
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
  float weight = 0.0F;
};

/// Where the handle has a record: worked out before it may be read.
struct RecordPlace {
  const std::int32_t* home;
  const std::int32_t* token;
  const std::int32_t* row;
  const float* weight;

  /// Of any index: a record that does not exist is not used.
  __device__ __forceinline__ RecordPlace(const HandleArrays& handle, const Geometry& g, int index,
                                         int lane) {
    index = max(min(index, g.ranks * g.layout.shape().tokens - 1), 0);
    const int route = index * g.top_k + (lane < g.top_k ? lane : 0);
    home = handle.record_rank() + index;
    token = handle.record_token() + index;
    row = handle.route_rows() + route;
    weight = handle.local_weights() + route;
  }
  __device__ __forceinline__ Record read(const Geometry& g, int lane) const {
    Record record{load_now(home), load_now(token), load_now(row), load_now(weight)};
    if (lane >= g.top_k) record.row = Handle::kRowAbsent;
    return record;
  }
};

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
  if (mutant(KernelMutant::duplicate_dropped)) return weight;
  return routes > 1 && ((mask >> lane) & 1U) != 0 ? sum : weight;
}

/// What a record with duplicate routes comes to: lane k has its weight, all know what was answered.
struct Merged {
  float weight;
  std::uint32_t answered;
};
static __device__ __noinline__ Merged merge_routes(const std::int32_t* experts, int top_k, int row,
                                                   float weight) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int expert = lane < top_k ? experts[lane] : -1;
  const std::uint32_t present = lanes_with(row != Handle::kRowAbsent);
  const std::uint32_t stored = lanes_with(row >= 0);
  Merged merged{merged_weight(expert, weight, present, lane), stored};
#pragma unroll 1
  for (std::uint32_t left = stored; left != 0; left &= left - 1) {
    merged.answered |= routes_to_same(expert, present, __ffs(static_cast<int>(left)) - 1);
  }
  return merged;
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

/// Where a lane reads that would begin behind the end of a row: what the first lane of its warp reads.
__device__ __forceinline__ int within(int element, int hidden) {
  return element < hidden ? element : element & ~(kStepElements - 1);
}

/// A lane's elements of one piece: kSpan times eight of kBytes each. Those of the j-th eight are
/// j * kStepElements behind the first. What lies behind the end of a row is not written, and is read, if at
/// all, from within() it.
template <int kBytes, int kSpan>
struct Elements {
  static constexpr int kElementBytes = kBytes;
  static constexpr int kWords = kBytes / 2;
  static constexpr int kVectors = kSpan * kWords;
  static constexpr int kElements = kSpan * kStepElements;
  uint4 word[kSpan][kWords];

  __device__ __forceinline__ void load(const std::byte* at, int element, int hidden, bool aligned) {
    each<false>(element, hidden, [&](int j, int i, int byte) {
      word[j][i] = load_bytes<kBytes>(at + byte, aligned);
    });
  }
  __device__ __forceinline__ void floats(int j, float (&v)[kLaneElements], DType dtype) const {
    if constexpr (kBytes == 2) {
      floats_of_halves(word[j][0], dtype, v);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        v[4 * i] = __uint_as_float(word[j][i].x);
        v[4 * i + 1] = __uint_as_float(word[j][i].y);
        v[4 * i + 2] = __uint_as_float(word[j][i].z);
        v[4 * i + 3] = __uint_as_float(word[j][i].w);
      }
    }
  }

  // As packets of the combine codec, from the lane's first one on.
  __device__ __forceinline__ void encode(int j, const float (&v)[kLaneElements], DType dtype) {
    if constexpr (kBytes == 2) {
      word[j][0] = halves_of_floats(v, dtype);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        word[j][i] =
            never_empty(make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
                                   __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3])),
                        nan_word(DType::f32));
      }
    }
  }
  __device__ __forceinline__ void take(const std::byte* at, int element, int hidden) {
    each<false>(element, hidden,
                [&](int j, int i, int byte) { word[j][i] = load_packet(at + byte); });
  }
  /// Brings a piece to shared memory, where lanes have 16 bytes in turn; to: of this lane. Of a row that has `left` elements from
  /// `piece` on no more than those.
  static __device__ __forceinline__ void bring(SharedAt to, const std::byte* piece, int left,
                                               int lane) {
    const int element = lane * kLaneElements;
    const std::byte* const at = piece + element * kBytes;
    const auto copy = [&](int j, int i, int byte) {
      copy_async(to + (j * kWords + i) * 32 * 16, at + byte);
    };
    // Not one by one where all are there.
    if (left >= kElements) {
      each<true>(0, kElements, copy);
    } else {
      each<true>(element, left, copy);
    }
  }
  /// What was brought there.
  __device__ __forceinline__ void read(SharedAt at) {
#pragma unroll
    for (int j = 0; j < kSpan; ++j) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[j][i] = load_shared(at + (j * kWords + i) * 32 * 16);
    }
  }
  __device__ __forceinline__ void push(std::byte* at, int element, int hidden) const {
    each<true>(element, hidden,
               [&](int j, int i, int byte) { store_packet(at + byte, word[j][i]); });
  }
  __device__ __forceinline__ void clear(std::byte* at, int element, int hidden,
                                        std::uint32_t mark) const {
    each<true>(element, hidden, [&](int, int, int byte) { clear_packet(at + byte, mark); });
  }
  __device__ __forceinline__ bool empty() const {
    bool any = false;
#pragma unroll
    for (int j = 0; j < kSpan; ++j) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) any = any || word[j][i].w == window::kPoison;
    }
    return any;
  }

 private:
  template <bool kFirstToo, typename Work>
  __device__ __forceinline__ static void each(int element, int hidden, Work work) {
#pragma unroll
    for (int j = 0; j < kSpan; ++j) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if ((!kFirstToo && j == 0) || element + j * kStepElements < hidden) {
          work(j, i, j * kStepElements * kBytes + i * 16);
        }
      }
    }
  }
};

/// Ranks that a warp awaits at a time, with pieces of one step.
inline constexpr int kRanksAtOnce = 4;

/// What a kernel is made for.
template <int kInputSize, int kCodecSize, int kStepSpan, bool kSingleChain, bool kCommonCase,
          bool kWeightsCome, bool kManyRanks, bool kOtherNodes = !kCommonCase,
          bool kNodeSums = !kCommonCase>
struct CombineTraits {
  static constexpr int kInput = kInputSize;  // bytes of an element of y
  static constexpr int kSpan = kStepSpan;
  static constexpr int kStep = kStepSpan * kStepElements;
  static constexpr bool kSingle = kSingleChain;
  static constexpr bool kCommon = kCommonCase;
  /// Whether there may be other nodes.
  static constexpr bool kNodes = kOtherNodes;
  /// Whether these may be asked for sums (`reduce = node`).
  static constexpr bool kSums = kNodeSums;
  /// Whether it is for few tokens, and has a multiprocessor for itself.
  static constexpr bool kAlone = kCommonCase && kStepSpan == 1;
  using Input = Elements<kInput, kSpan>;
  using Output = Elements<kCodecSize, kSpan>;
  /// Whether weights may be given to combine.
  static constexpr bool kWeights = kWeightsCome;
  /// Whether there may be more ranks than kRanksAtOnce. Calls that are never made cost the caller registers, too.
  static constexpr bool kFurtherRanks = kManyRanks;
  /// The same with pieces of one step, as the receive half takes them: then four ranks fit into registers.
  using OneStep = CombineTraits<kInputSize, kCodecSize, 1, kSingleChain, kCommonCase, kWeightsCome,
                                kManyRanks, kOtherNodes, kNodeSums>;

  // Common calls are those of bf16.
  static __device__ DType y_dtype(const CombineArgs& a) {
    return kCommon ? DType::bf16 : a.y_dtype;
  }
  static __device__ DType codec(const CombineArgs& a) { return kCommon ? DType::bf16 : a.codec; }
  static __device__ DType out_dtype(const CombineArgs& a) {
    return kCommon ? DType::bf16 : a.out_dtype;
  }
  /// Rows of common calls are no longer than 2^31 bytes, and there are no gaps between slabs.
  static __device__ __forceinline__ std::byte* row(const Grid& grid, int row, int byte) {
    if (!kCommon) return row_at(grid, row) + byte;
    return grid.base + byte +
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(row)) *
               static_cast<std::uint32_t>(grid.row_stride);
  }
};

/// Whether the call's tensors are those that the handle's dispatch calls for.
__device__ __forceinline__ bool fits(const CombineArgs& a, const window::HandleBrief& brief) {
  const bool slabs = brief.layout == static_cast<std::uint32_t>(Layout::expert_slab);
  const bool rank_major = brief.layout == static_cast<std::uint32_t>(Layout::rank_major);
  // Not short-circuited: these are few instructions without branches.
  bool fit = (a.y_slabs == slabs) & (slabs ? a.y_rows == brief.capacity : a.y_rows >= brief.rows);
  fit &= !a.weights_given | (a.weights_tokens == static_cast<int>(brief.tokens));
  fit &= a.row_weights == nullptr | (rank_major & (a.row_weights_rows >= brief.rows));
  fit &= !(a.single & rank_major);
  return fit & (a.drop | !a.halves.receive | (a.tokens == static_cast<int>(brief.tokens)));
}

/// What both halves of one operation know.
struct Combine {
  const CombineArgs& a;
  const Geometry& g;
  HandleArrays handle;
  std::uint32_t signature;
  std::uint32_t tag;
  const Block& block;
  int bank;
  std::uint16_t layout;  // of the rows

  __device__ int slot(int token, int k) const {
    return token * g.layout.shape().combine_rows_per_token + k;
  }
};

/// Where answers of a combine go at `home`, or to who adds them up, and what belongs to them.
template <typename Traits>
__device__ __forceinline__ std::byte* answer_out(const Combine& c, int home, std::uint32_t offset) {
  if constexpr (Traits::kSums) {
    if (c.a.by_node) return c.g.state->nodes.to[home] + offset;
  }
  return out_at(c.g, home, offset);
}
/// Likewise their rows.
template <typename Traits>
__device__ __forceinline__ std::byte* row_out(const Combine& c, int home, std::uint32_t offset) {
  if constexpr (Traits::kSums) {
    if (c.a.by_node) return c.g.state->nodes.to[home] + offset;
  }
  return Traits::kNodes ? row_out_at(c.g, home, offset) : out_at(c.g, home, offset);
}
/// Where what `giver` brings is.
template <typename Traits>
__device__ __forceinline__ std::byte* answer_in(const Combine& c, int giver, std::uint32_t offset) {
  if constexpr (Traits::kSums) {
    if (c.a.by_node) return c.g.state->nodes.from[giver] + offset;
  }
  return in_at(c.g, giver, offset);
}

/// Of a packet of weights, the one of route `k`.
__device__ __forceinline__ float weight_in(uint4 packet, int k) {
  const int i = k % window::kPacketWeights;
  return __uint_as_float(i == 0 ? packet.y : (i == 1 ? packet.z : packet.w));
}

/// Lane k: where the packet lies in which home sends the weight of a token's route k.
__device__ __forceinline__ const std::byte* weight_at(const Combine& c, int home, int token,
                                                      int lane) {
  const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
  return in_at(c.g, home, c.g.layout.weight(c.bank, token)) + packet * 16;
}
/// Whether they have come: await_weight() will not wait. Pairs with send_weights_to() of home.
__device__ __forceinline__ bool has_weights(const Combine& c, int home, int token, int lane) {
  return __all_sync(~0U, load_packet(weight_at(c, home, token, lane)).x == c.tag);
}

/// The weights that home sends for one of its tokens: lane k has that of route k; 0 if home will send
/// none, because it refused its call or made another, or is given up.
__device__ __forceinline__ float await_weight(const Combine& c, int home, int token,
                                              Patience& patience, int lane) {
  const std::byte* at = weight_at(c, home, token, lane);
  uint4 v = load_packet(at);  // Pairs with send_weights_to() of home.
  while (!__all_sync(~0U, v.x == c.tag)) {
    if (patience.weary()) {
      const uint4 packet =
          load_packet(in_at(c.g, home, c.g.layout.cell(protocol::CellKind::combine, c.bank)));
      PeerCell cell;
      cell.read(packet, c.signature);
      const bool none = packet.x == c.tag && (cell.refused || cell.mismatched);
      if (__any_sync(~0U, none || patience.look(home))) return 0.0F;
    }
    v = load_packet(at);
  }
  return weight_in(v, lane);
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

/// What was answered of one token, and its routes: lane k has route k.
struct HomeToken {
  int expert = -1;
  int owner = -1;
  std::uint32_t expected = 0;
  std::uint32_t answered = 0;
};

/// A token whose routes lead to these experts, lane k's to `expert`, and the ranks that it went to. Of a handle that may be
/// another's: ids of no expert are none.
__device__ __forceinline__ HomeToken token_of(const Combine& c, int expert, std::uint32_t& ranks) {
  HomeToken home;
  home.expert = expert < c.g.experts ? expert : -1;
  if (home.expert >= 0) home.owner = owner_of(c.g, home.expert).rank;
  home.expected = lanes_with(home.expert >= 0);
  ranks = __reduce_or_sync(~0U, home.owner >= 0 ? 1U << home.owner : 0U);
  return home;
}
__device__ __forceinline__ HomeToken read_token(const Combine& c, int token, int lane,
                                                std::uint32_t& ranks) {
  int expert = -1;
  if (lane < c.g.top_k) expert = c.handle.topk_ids()[token * c.g.top_k + lane];
  return token_of(c, expert, ranks);
}

/// With `reduce = node`: who brings what the ranks in `ranks` answer of a token, instead of these.
template <typename Traits>
__device__ __forceinline__ void ask_givers(const Combine& c, HomeToken& home,
                                           std::uint32_t& ranks) {
  if constexpr (Traits::kSums) {
    if (!c.a.by_node) return;
    if (home.owner >= 0) home.owner = c.g.state->nodes.giver_of[home.owner];
    ranks = __reduce_or_sync(~0U, home.owner >= 0 ? 1U << home.owner : 0U);
  }
}
/// Whether `giver` brings sums of another node. The rows of these are there when its answers are, and are not emptied.
template <typename Traits>
__device__ __forceinline__ bool gives_sums(const Combine& c, int giver) {
  if constexpr (!Traits::kSums) return false;
  return c.a.by_node && giver < c.g.ranks && ((c.g.state->nodes.near >> giver) & 1U) == 0;
}
/// What that one has said by now: how its answer to a token, { tag, routes, signature, rows }, is, and whether none comes.
struct Given {
  uint4 answer;
  bool none;
};
/// By any thread. kFormWord: of its cell's form packet.
template <int kFormWord>
__device__ __forceinline__ Given ask_giver(const Combine& c, int giver, int token) {
  const Geometry& g = c.g;
  const std::byte* const from = c.g.state->nodes.from[giver];
  const std::byte* const at = from + g.layout.answer(c.bank, token);
  Given given{load_packet_acquire(at), false};  // Pairs with carry_answer().
  if (given.answer.x == c.tag) return given;
  // Pairs with carry() of kSummed.
  const std::uint64_t summed =
      load_acquire(reinterpret_cast<const std::uint64_t*>(from + g.layout.summed(c.bank)));
  // Not where nobody has written.
  given.none = summed != ~std::uint64_t{0} && window::tag_of(summed) == c.tag;
  if (given.none) given.answer = load_packet(at);  // What came before that.
  if (given.none) return given;
  // Or that its own call is another, and it adds up nothing.
  const std::byte* const cell = in_at(g, giver, g.layout.cell(protocol::CellKind::combine, c.bank));
  const uint4 form = load_packet(cell + window::kFormPacket * window::kPacketBytes);
  const std::uint32_t flags = kFormWord == 1 ? form.y : form.z;
  given.none = form.x == c.tag && (flags & window::kByNode) == 0;
  return given;
}
/// In latency mode, and in throughput mode, where other words of it say where rows lie.
inline constexpr int kFormWordOfLatency = 1;
inline constexpr int kFormWordOfThroughput = 2;

/// With `reduce = node`: what a cell's form says of it.
__device__ __forceinline__ std::uint32_t form_by_node(const CombineArgs& a) {
  if (!a.by_node) return 0;
  const std::uint32_t codec = a.codec == DType::f32 ? 2U : (a.codec == DType::f16 ? 1U : 0U);
  return window::kByNode | codec << window::kFormCodecShift;
}

/// How many tokens of `home` this rank answers at most, for who adds them up there: its last one's number, and one.
__device__ __forceinline__ std::uint32_t answered_tokens(const HandleArrays& handle, int home) {
  const std::int64_t begin = handle.source_offsets()[home];
  const std::int64_t end = handle.source_offsets()[home + 1];
  return begin == end ? 0U : static_cast<std::uint32_t>(handle.record_token()[end - 1]) + 1U;
}

/// Lane k: the weight of route k, given to combine or else to its dispatch.
__device__ __forceinline__ float read_weight(const Combine& c, int token, int lane) {
  const CombineArgs& a = c.a;
  if (lane >= c.g.top_k) return 0.0F;
  return a.weights != nullptr ? a.weights[token * a.weights_stride[0] + lane * a.weights_stride[1]]
                              : c.handle.topk_weights()[token * c.g.top_k + lane];
}

}  // namespace sluice::engine::cuda
