// SPDX-License-Identifier: MIT
#include "engine/cuda/combine_drain.cuh"
#include "engine/cuda/elements.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "sluice/handle.hpp"

/// combine: the expert's rank forms one partial sum per record and pushes it home; home adds the
/// partial sums of a token, ranks ascending, as soon as they are there.
namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Elements that a lane handles at a time, and a warp.
constexpr int kLaneElements = 8;
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
      const uint4 cell = load_packet(in_at(g, g.layout.cell(lane, CellKind::combine, bank)));
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

/// What was answered of one token, and its routes: lane k has route k.
struct HomeToken {
  int expert = -1;
  int owner = -1;
  float weight = 0.0F;
  std::uint32_t expected = 0;
  std::uint32_t answered = 0;
};

__device__ __forceinline__ HomeToken read_token(const CombineArgs& a, const HandleArrays& handle,
                                                int token, int lane) {
  const Geometry& g = a.geometry;
  HomeToken home;
  if (lane < g.top_k) {
    home.expert = handle.topk_ids()[token * g.top_k + lane];
    home.weight = a.weights != nullptr
                      ? a.weights[token * a.weights_stride[0] + lane * a.weights_stride[1]]
                      : handle.topk_weights()[token * g.top_k + lane];
  }
  return home;
}

/// Ranks that the token went to.
__device__ __forceinline__ std::uint32_t find_ranks(const Geometry& g, HomeToken& home) {
  if (home.expert >= 0) home.owner = owner_of(g, home.expert).rank;
  home.expected = lanes_with(home.expert >= 0);
  return __reduce_or_sync(~0U, home.owner >= 0 ? 1U << home.owner : 0U);
}

/// What comes after the sum: scaling, further addends, rounding, the store.
template <typename Traits>
__device__ __forceinline__ void finish_token(const Combine& c, const HomeToken& home, int token,
                                             int step, float (&sum)[kLaneElements], int lane) {
  const CombineArgs& a = c.a;
  const std::uint32_t lost = home.expected & ~home.answered;
  float scale = 1.0F;
  if (lost != 0 && home.answered != 0 && a.renormalize) {
    const float whole = ordered_sum(home.weight, home.expected);
    const float surviving = ordered_sum(home.weight, home.answered);
    if (whole != surviving) scale = whole / surviving;
  }
  if (step == 0) {
    if (a.surviving_weight != nullptr) {
      const float surviving = ordered_sum(home.weight, home.answered);
      if (lane == 0) a.surviving_weight[token * a.surviving_stride] = surviving;
    }
    if (lost != 0 && lane == 0) {
      atomicAdd_system(&c.g.board->totals[1].lost_routes,
                       static_cast<unsigned long long>(__popc(lost)));
    }
  }
  const int element = step * kStepElements + lane * kLaneElements;
  if (element >= c.g.hidden) return;
  if (scale != 1.0F) {
#pragma unroll
    for (float& value : sum) value = value * scale;
  }
#pragma unroll 1
  for (int x = 0; x < a.extras; ++x) {
    float v[kLaneElements];
    load_floats<Traits::kAligned>(row_at(a.extra[x], token), element, a.extra_dtype[x], v);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
  }
  std::byte* const out = row_at(a.out, token);
  if (a.out_dtype != DType::f32) {
    store_bytes<Traits::kAligned, 2>(out + element * 2, halves_of_floats(sum, a.out_dtype));
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_bytes<Traits::kAligned, 4>(
          out + element * 4 + 16 * i,
          make_uint4(__float_as_uint(sum[4 * i]), __float_as_uint(sum[4 * i + 1]),
                     __float_as_uint(sum[4 * i + 2]), __float_as_uint(sum[4 * i + 3])));
    }
  }
}

/// A step of one token whose partial sums come from its ranks.
template <typename Traits>
__device__ __forceinline__ void sum_token(Combine& c, HomeToken home, int token, int step,
                                          int lane) {
  using Packets = typename Traits::Output;
  const Geometry& g = c.g;
  const int element = step * kStepElements + lane * kLaneElements;
  const bool inside = element < g.hidden;
  std::uint32_t ranks = find_ranks(g, home);
  float sum[kLaneElements] = {};
#pragma unroll 1
  while (ranks != 0) {
    constexpr int kRanks = 4;  // awaited at a time
    Packets packets[kRanks];
    std::uint32_t mask[kRanks];
    std::uint32_t left = ranks;
    std::uint32_t given_up = 0;
#pragma unroll 1
    for (;;) {
      std::uint32_t late = 0;  // Ranks whose answer has not come.
      bool here = true;
      left = ranks;
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        mask[i] = 0;
        if (left == 0) continue;
        const int rank = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        // Pair with the stores of send_record() of the peer.
        const uint4 answer = load_packet(in_at(g, g.layout.answer(rank, c.bank, token)));
        if (inside) {
          packets[i].load(in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, 0))), element);
        }
        if (answer.x == c.tag) {
          mask[i] = answer.z == static_cast<std::uint32_t>(c.signature) ? answer.y : 0;
          if (mask[i] != 0 && inside && packets[i].empty()) here = false;
        } else {
          late |= 1U << rank;
        }
      }
      if (__all_sync(~0U, here && (late & ~given_up) == 0)) break;
      given_up |= c.give_up(ranks & ~left, late);
      if (c.lost) break;
    }
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      if (ranks == left) break;
      const int rank = __ffs(static_cast<int>(ranks)) - 1;
      ranks &= ranks - 1;
      if (mask[i] == 0 || ((given_up >> rank) & 1U) != 0) continue;
      home.answered |= mask[i] & lanes_with(home.owner == rank);
      if (!inside) continue;
      packets[i].clear(in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, 0))), element);
      float v[kLaneElements];
      packets[i].decode(v, c.a.codec);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
    }
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
}

/// Likewise with `single`: one chain over the routes.
template <typename Traits>
__device__ __forceinline__ void chain_token(Combine& c, HomeToken home, int token, int step,
                                            int lane) {
  const Geometry& g = c.g;
  const int element = step * kStepElements + lane * kLaneElements;
  const bool inside = element < g.hidden;
  (void)find_ranks(g, home);
  float sum[kLaneElements] = {};
  const float weight = merged_weight(home.expert, home.weight, home.expected, lane);
#pragma unroll 1
  for (std::uint32_t left = home.expected; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t same = routes_to_same(home.expert, home.expected, k);
    if (__ffs(static_cast<int>(same)) - 1 != k) continue;  // Took part at its lowest route.
    const int rank = __shfl_sync(~0U, home.owner, k);
    std::byte* const row = in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, k)));
    typename Traits::Output packets;
    bool answered = false;
#pragma unroll 1
    for (;;) {
      const uint4 answer = load_packet(in_at(g, g.layout.answer(rank, c.bank, token)));
      if (inside) packets.load(row, element);
      const bool come = answer.x == c.tag;
      answered = come && answer.z == static_cast<std::uint32_t>(c.signature) &&
                 ((answer.y >> k) & 1U) != 0;
      if (__all_sync(~0U, come && (!answered || !inside || !packets.empty()))) break;
      if (c.give_up(1U << rank, come ? 0 : 1U << rank) != 0 || c.lost) {
        answered = false;
        break;
      }
    }
    if (!__all_sync(~0U, answered)) continue;
    home.answered |= same;
    const float w = c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
    if (!inside) continue;
    packets.clear(row, element);
    float v[kLaneElements];
    packets.decode(v, c.a.codec);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[e] = __fmaf_rn(w, v[e], sum[e]);
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
}

/// Brings the weights of rank_major rows home.
__device__ __forceinline__ void take_row_weights(Combine& c, int token, int lane) {
  HomeToken home = read_token(c.a, c.handle, token, lane);
  float value = 0.0F;
  std::uint32_t ranks = find_ranks(c.g, home);
#pragma unroll 1
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = __ffs(static_cast<int>(ranks)) - 1;
    const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
    const std::byte* at = in_at(c.g, c.g.layout.row_weight(rank, c.bank, token)) + packet * 16;
    bool given_up = false;
    uint4 v = load_packet(at);
#pragma unroll 1
    while (!given_up && !__all_sync(~0U, v.x == c.tag)) {
      given_up = c.give_up(1U << rank, 1U << rank) != 0;
      v = load_packet(at);
    }
    const int i = lane % window::kPacketWeights;
    if (!given_up && home.owner == rank) {
      value = __uint_as_float(i == 0 ? v.y : (i == 1 ? v.z : v.w));
    }
  }
  if (lane < c.g.top_k) {
    c.a.weights_home[token * c.a.weights_home_stride[0] + lane * c.a.weights_home_stride[1]] =
        value;
  }
}

/// What a kernel is made for.
template <int kInputSize, int kCodecSize, bool kSingleChain, bool kAlignedRows>
struct CombineTraits {
  static constexpr int kInput = kInputSize;  // bytes of an element of y
  static constexpr bool kSingle = kSingleChain;
  static constexpr bool kAligned = kAlignedRows;
  using Input = Elements<kInput, kAligned>;
  using Output = Packets<kCodecSize>;
};

/// Whether the call's tensors are those that the handle's dispatch calls for.
__device__ __forceinline__ bool fits(const CombineArgs& a, const HandleState& state) {
  const bool slabs = state.layout == static_cast<std::uint8_t>(Layout::expert_slab);
  if (a.y_slabs != slabs) return false;
  if (slabs ? a.y_rows != state.capacity : a.y_rows < state.rows) return false;
  return a.drop || !a.halves.receive || a.tokens == state.tokens;
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 2)
    combine_kernel(const __grid_constant__ CombineArgs a) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x) * kBlockWarps;
  const int place = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const bool last_block = blockIdx.x == gridDim.x - 1;
  const int steps = static_cast<int>(a.steps_divisor.divisor);
  overlap_neighbours();

  // Everything that is needed first is asked for at once.
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  HandleState state;
  Record record;
  HomeToken home;
  if (!a.refused) {
    state = read_handle(handle.header(), g.fingerprint, g.rank);
    // Whether or not there is such a record.
    if (a.halves.send && quotient(place, a.steps_divisor) < g.ranks * g.layout.shape().tokens) {
      record = read_record(handle, g, quotient(place, a.steps_divisor), lane);
    }
    if (a.halves.receive && place < a.tokens * steps) {
      home = read_token(a, handle, quotient(place, a.steps_divisor), lane);
    }
  }
  Guard guard(g, Kind::combine, warp == kBlockWarps - 1 ? lane : kPeersMax);
  if (threadIdx.x == 0) read_epochs(g, Kind::combine, block);
  __syncthreads();
  const Progress progress = a.halves.send ? block.sent : block.received;
  const bool usable = state.usable && fits(a, state);
  const int records = usable ? state.records : 0;
  Combine c(a, progress, mix(a.signature, state.dispatch * 4 + state.layout), block.suspects,
            state.layout);

  if (a.halves.send) {
    guard.pass(g, progress.epoch + 1, block.suspects, a.timeout_ns);
    __syncthreads();
    if (usable && !Traits::kSingle && a.weights_given && !a.plain_sum) {
#pragma unroll 1
      for (int token = warps - 1 - place; token < a.tokens; token += warps) {
        HomeToken from = read_token(a, handle, token, lane);
#pragma unroll 1
        for (std::uint32_t ranks = find_ranks(g, from); ranks != 0; ranks &= ranks - 1) {
          const int rank = __ffs(static_cast<int>(ranks)) - 1;
          send_weights_to(c, out_at(g, rank, g.layout.weight(g.rank, c.bank, token)),
                          from.owner == rank ? from.weight : 0.0F, lane);
        }
      }
    }
    if (last_block) {
      if (warp == kBlockWarps - 1) {
        tell(g, Kind::combine, block.received.epoch, block.suspects, lane);
      }
      if (static_cast<int>(threadIdx.x) < g.ranks && ((block.suspects >> threadIdx.x) & 1U) == 0) {
        const int peer = static_cast<int>(threadIdx.x);
        int answers = static_cast<int>(CellCode::refused);
        if (usable) {
          const std::int64_t* const offsets = handle.source_offsets();
          answers = handle.header()->accepted.contains(peer)
                        ? static_cast<int>(offsets[peer + 1] - offsets[peer])
                        : static_cast<int>(CellCode::nothing);
        }
        send_cell(g, peer, CellKind::combine, c.bank, c.tag, answers, c.signature);
      }
    }
#pragma unroll 1
    for (int task = place; task < records * steps; task += warps) {
      const int index = quotient(task, a.steps_divisor);
      if (task != place) record = read_record(handle, g, index, lane);
      send_record<Traits>(c, record, task - index * steps, lane);
    }
  }

  if (a.halves.receive) {
    if (usable && !a.drop) {
#pragma unroll 1
      for (int task = place; task < a.tokens * steps; task += warps) {
        const int token = quotient(task, a.steps_divisor);
        if (task != place) home = read_token(a, handle, token, lane);
        if constexpr (Traits::kSingle) {
          chain_token<Traits>(c, home, token, task - token * steps, lane);
        } else {
          sum_token<Traits>(c, home, token, task - token * steps, lane);
        }
      }
      if (a.weights_home != nullptr) {
#pragma unroll 1
        for (int token = place; token < a.tokens; token += warps) take_row_weights(c, token, lane);
      }
    }
    if (last_block && (!usable || a.drop)) drain_answers(&a, c.tag, c.bank);
    // Every peer's cell, also of those that had nothing to say: the proof that banks are reused by.
    if (last_block && warp == 0) {
      Cells cells(g, CellKind::combine, c.bank, c.tag, c.signature, lane);
      cells.await(g.ranks - 1, lane, c.patience);
      const std::uint32_t missing = cells.missing();
      const std::uint32_t refused = cells.refused();
      const std::uint32_t mismatched = usable ? cells.mismatched() : 0;
      if (lane == 0 && (missing | refused | mismatched) != 0) {
        report_cells(&g.board->totals[static_cast<int>(Kind::combine)], missing, refused,
                     mismatched);
      }
    }
  }
  __syncthreads();
  close(g, Kind::combine, a.halves, block);
}

template <bool kSingle, bool kAligned>
auto kernel_for(const CombineArgs& a) {
  using Kernel = void (*)(const CombineArgs);
  const bool wide_y = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return wide_y ? Kernel{combine_kernel<CombineTraits<4, 4, kSingle, kAligned>>}
                  : Kernel{combine_kernel<CombineTraits<2, 4, kSingle, kAligned>>};
  }
  return wide_y ? Kernel{combine_kernel<CombineTraits<4, 2, kSingle, kAligned>>}
                : Kernel{combine_kernel<CombineTraits<2, 2, kSingle, kAligned>>};
}

auto kernel_for(const CombineArgs& a) {
  if (a.single) return a.aligned ? kernel_for<true, true>(a) : kernel_for<true, false>(a);
  return a.aligned ? kernel_for<false, true>(a) : kernel_for<false, false>(a);
}

}  // namespace

int launch_combine(const CombineArgs& args, const Launch& launch) {
  return launch_kernel(kernel_for(args), args, launch, 0);
}

int load_combine_kernels() {
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const bool single : {false, true}) {
        for (const bool aligned : {false, true}) {
          CombineArgs args;
          args.codec = codec;
          args.y_dtype = dtype;
          args.single = single;
          args.aligned = aligned;
          cudaFuncAttributes attributes;
          const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel_for(args));
          if (error != cudaSuccess) return error;
        }
      }
    }
  }
  return cudaSuccess;
}

int combine_blocks_per_processor(const CombineArgs& args) {
  return blocks_per_processor(kernel_for(args), 0);
}

}  // namespace sluice::engine::cuda
