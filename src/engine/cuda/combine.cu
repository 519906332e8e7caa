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
  float weight = 0.0F;
};

__device__ __forceinline__ Record read_record(const HandleArrays& handle, const Geometry& g,
                                              int index, int lane) {
  Record record;
  record.home = handle.record_rank()[index];
  record.token = handle.record_token()[index];
  if (lane < g.top_k) {
    const int at = index * g.top_k + lane;
    record.row = handle.route_rows()[at];
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

/// What a record with duplicate routes comes to: lane k has its weight, all know what was answered.
struct Merged {
  float weight;
  std::uint32_t answered;
};
__device__ __noinline__ Merged merge_routes(const std::int32_t* experts, int top_k, int row,
                                            float weight) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
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
template <int kInput>
struct Elements {
  uint4 words[kInput / 2];
  __device__ __forceinline__ void load(const std::byte* at, bool aligned) {
#pragma unroll
    for (int i = 0; i < kInput / 2; ++i) words[i] = load_bytes<kInput>(at + 16 * i, aligned);
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

/// The rows of one step of a record: the first of them are asked for ahead.
template <typename Traits>
struct Rows {
  static constexpr int kAhead = 4;
  typename Traits::Input y[kAhead];

  /// Asks for the next rows of the lanes in `left`; returns the lanes that remain.
  __device__ __forceinline__ std::uint32_t ask(const CombineArgs& a, int own_row,
                                               std::uint32_t left, int element) {
    std::byte* const own = own_row >= 0 ? row_at(a.y, own_row) : nullptr;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::byte* row = pointer_of(own, (__ffs(static_cast<int>(left)) - 1) & 31);
      if (left != 0 && element < a.geometry.hidden) {
        y[i].load(row + element * Traits::kInput, Traits::kCommon || a.aligned);
      }
      left &= left - 1;
    }
    return left;
  }
  /// Adds them. `left` as given to ask().
  __device__ __forceinline__ void add(const CombineArgs& a, float own_weight, std::uint32_t left,
                                      float (&sum)[kLaneElements]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float weight = __shfl_sync(~0U, own_weight, (__ffs(static_cast<int>(left)) - 1) & 31);
      if (left == 0) break;
      left &= left - 1;
      float v[kLaneElements];
      y[i].floats(v, a.y_dtype);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = __fmaf_rn(weight, v[e], sum[e]);
    }
  }
};

/// The routes of a record whose rows are summed.
__device__ __forceinline__ std::uint32_t summed_routes(const Record& record, bool rank_major) {
  const std::uint32_t stored = lanes_with(record.row >= 0);
  return rank_major ? stored & (~stored + 1) : stored;
}

/// A step of one record: its partial sum, whose first rows are asked for, or with `single` its rows.
template <typename Traits>
__device__ __forceinline__ void send_record(Combine& c, Record record, Rows<Traits>& rows,
                                            int index, int step, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const int home = record.home;
  const int token = record.token;
  if (home < 0 || ((c.suspects >> home) & 1U) != 0) return;
  const bool rank_major = c.layout == static_cast<std::uint8_t>(Layout::rank_major);
  const bool weighted = !rank_major && (Traits::kCommon || !a.plain_sum);
  if (!Traits::kCommon && !Traits::kSingle && a.weights_given && weighted) {
    record.weight = await_weight(c, home, token, lane);
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
    store_packet(out_at(g, home, g.layout.answer(g.rank, c.bank, token)),
                 make_uint4(c.tag, answered, static_cast<std::uint32_t>(c.signature), stored));
  }
  if (!Traits::kCommon && step == 0 && a.row_weights != nullptr) {
    float value = 0.0F;
    if (record.row >= 0) {  // Of rank_major: the record's own row.
      value = a.row_weights[record.row * a.row_weights_stride[0] + lane * a.row_weights_stride[1]];
    }
    send_weights_to(c, out_at(g, home, g.layout.row_weight(g.rank, c.bank, token)), value, lane);
  }

  const int element = step * kStepElements + lane * kLaneElements;
  if constexpr (Traits::kSingle) {
#pragma unroll 1
    for (std::uint32_t left = lanes_with(record.row >= 0); left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      const int row = __shfl_sync(~0U, record.row, k);
      if (element >= g.hidden) continue;
      typename Traits::Input y;
      y.load(row_at(a.y, row) + element * Traits::kInput, Traits::kCommon || a.aligned);
      float v[kLaneElements];
      y.floats(v, a.y_dtype);
      typename Traits::Output packets;
      packets.encode(v, a.codec);
      packets.store(out_at(g, home, g.layout.combine_row(g.rank, c.bank, c.slot(token, k))),
                    element);
    }
  } else {
    std::uint32_t left = summed_routes(record, rank_major);
    if (left == 0) return;
    std::byte* const out = out_at(g, home, g.layout.combine_row(g.rank, c.bank, c.slot(token, 0)));
    float sum[kLaneElements] = {};
    rows.add(a, record.weight, left, sum);
#pragma unroll
    for (int i = 0; i < Rows<Traits>::kAhead; ++i) left &= left - 1;
#pragma unroll 1
    while (left != 0) {
      const std::uint32_t next = rows.ask(a, record.row, left, element);
      rows.add(a, record.weight, left, sum);
      left = next;
    }
    if (element >= g.hidden) return;
    typename Traits::Output packets;
    packets.encode(sum, a.codec);
    packets.store(out, element);
  }
}

/// What was answered of one token, and its routes: lane k has route k.
struct HomeToken {
  int expert = -1;
  int owner = -1;
  std::uint32_t expected = 0;
  std::uint32_t answered = 0;
};

__device__ __forceinline__ HomeToken read_token(const Geometry& g, const HandleArrays& handle,
                                                int token, int lane) {
  HomeToken home;
  if (lane < g.top_k) home.expert = handle.topk_ids()[token * g.top_k + lane];
  return home;
}

/// Lane k: the weight of route k, given to combine or else to its dispatch.
__device__ __forceinline__ float read_weight(const CombineArgs& a, const HandleArrays& handle,
                                             int token, int lane) {
  if (lane >= a.geometry.top_k) return 0.0F;
  return a.weights != nullptr ? a.weights[token * a.weights_stride[0] + lane * a.weights_stride[1]]
                              : handle.topk_weights()[token * a.geometry.top_k + lane];
}

/// Ranks that the token went to.
__device__ __forceinline__ std::uint32_t find_ranks(const Geometry& g, HomeToken& home) {
  if (home.expert >= 0) home.owner = owner_of(g, home.expert).rank;
  home.expected = lanes_with(home.expert >= 0);
  return __reduce_or_sync(~0U, home.owner >= 0 ? 1U << home.owner : 0U);
}

/// What the sum of a token is multiplied by of whose routes only some were answered.
__device__ __noinline__ float surviving_scale(float weight, std::uint32_t expected,
                                              std::uint32_t answered) {
  const float whole = ordered_sum(weight, expected);
  const float surviving = ordered_sum(weight, answered);
  return whole != surviving ? whole / surviving : 1.0F;
}

/// What comes after the sum: scaling, further addends, rounding, the store.
template <typename Traits>
__device__ __forceinline__ void finish_token(const Combine& c, const HomeToken& home, int token,
                                             int step, float (&sum)[kLaneElements], int lane) {
  const CombineArgs& a = c.a;
  const bool aligned = Traits::kCommon || a.aligned;
  const std::uint32_t lost = home.expected & ~home.answered;
  float scale = 1.0F;
  if (lost != 0) {
    if (home.answered != 0 && a.renormalize) {
      scale = surviving_scale(read_weight(a, c.handle, token, lane), home.expected, home.answered);
    }
    if (step == 0 && lane == 0) {
      atomicAdd_system(&c.g.board->totals[static_cast<int>(Kind::combine)].lost_routes,
                       static_cast<unsigned long long>(__popc(lost)));
    }
  }
  if (!Traits::kCommon && step == 0 && a.surviving_weight != nullptr) {
    const float surviving = ordered_sum(read_weight(a, c.handle, token, lane), home.answered);
    if (lane == 0) a.surviving_weight[token * a.surviving_stride] = surviving;
  }
  const int element = step * kStepElements + lane * kLaneElements;
  if (element >= c.g.hidden) return;
  if (scale != 1.0F) {
#pragma unroll
    for (float& value : sum) value = value * scale;
  }
  if constexpr (!Traits::kCommon) {
#pragma unroll 1
    for (int x = 0; x < a.extras; ++x) {
      float v[kLaneElements];
      load_floats(row_at(a.extra[x], token), element, a.extra_dtype[x], aligned, v);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
    }
  }
  std::byte* const out = row_at(a.out, token);
  if (a.out_dtype != DType::f32) {
    store_bytes<2>(out + element * 2, halves_of_floats(sum, a.out_dtype), aligned);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_bytes<4>(out + element * 4 + 16 * i,
                     make_uint4(__float_as_uint(sum[4 * i]), __float_as_uint(sum[4 * i + 1]),
                                __float_as_uint(sum[4 * i + 2]), __float_as_uint(sum[4 * i + 3])),
                     aligned);
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
  const auto stride = static_cast<std::uint32_t>(g.layout.lane(1));  // From rank to rank.
  std::byte* const row = in_at(g, g.layout.combine_row(0, c.bank, c.slot(token, 0)));
  std::uint32_t ranks = find_ranks(g, home);
  float sum[kLaneElements] = {};
#pragma unroll 1
  while (ranks != 0) {
    constexpr int kRanks = 4;  // awaited at a time
    Packets packets[kRanks];
    std::byte* from[kRanks];
    std::uint32_t bits[kRanks];  // 0: no rank
    std::uint32_t awaited = 0;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      bits[i] = ranks & (~ranks + 1);
      ranks ^= bits[i];
      awaited |= bits[i];
      from[i] = row + std::uint64_t{stride} * static_cast<std::uint32_t>(31 - __clz(bits[i] | 1));
    }
    const bool asks = ((awaited >> lane) & 1U) != 0;
    std::uint32_t given = 0;  // Ranks whose sum comes.
    std::uint32_t given_up = 0;
    std::uint32_t answered = 0;  // Lane r: by rank r.
#pragma unroll 1
    for (;;) {
      // Pair with the stores of send_record() of the peers.
      uint4 answer = make_uint4(0, 0, 0, 0);
      if (asks) answer = load_packet(in_at(g, g.layout.answer(lane, c.bank, token)));
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        packets[i] = {};
        if (inside && bits[i] != 0) packets[i].load(from[i], element);
      }
      const bool come = answer.x == c.tag;
      const std::uint32_t late = awaited & ~lanes_with(come);
      answered = come && answer.z == static_cast<std::uint32_t>(c.signature) ? answer.y : 0;
      given = awaited & lanes_with(answered != 0);
      bool here = true;
#pragma unroll
      for (int i = 0; i < kRanks; ++i)
        here = here && ((given & bits[i]) == 0 || !packets[i].empty());
      if (__all_sync(~0U, here && (late & ~given_up) == 0)) break;
      given_up |= c.give_up(awaited, late);
      if (c.lost) break;
    }
    given &= ~given_up;
    const std::uint32_t by_owner = __shfl_sync(~0U, answered, home.owner & 31);
    home.answered |= lanes_with(home.owner >= 0 && ((given >> home.owner) & 1U) != 0 &&
                                ((by_owner >> lane) & 1U) != 0);
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      if ((given & bits[i]) == 0) continue;
      if (inside) packets[i].clear(from[i], element);
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
  const float weight =
      merged_weight(home.expert, read_weight(c.a, c.handle, token, lane), home.expected, lane);
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
    const float w = !Traits::kCommon && c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
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
  HomeToken home = read_token(c.g, c.handle, token, lane);
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

/// Tokens of a rank up to which latency counts more than evenly used links.
constexpr int kFewTokens = 16;

/// The index-th record of `records`, counted from `rotation` on.
__device__ __forceinline__ int rotated(int index, int rotation, int records) {
  index += rotation;
  return rotation != 0 && index >= records ? index - records : index;
}

/// Whether the call's tensors are those that the handle's dispatch calls for.
__device__ __forceinline__ bool fits(const CombineArgs& a, const HandleState& state) {
  const bool slabs = state.layout == static_cast<std::uint8_t>(Layout::expert_slab);
  if (a.y_slabs != slabs) return false;
  if (slabs ? a.y_rows != state.capacity : a.y_rows < state.rows) return false;
  return a.drop || !a.halves.receive || a.tokens == state.tokens;
}

/// What a kernel is made for.
template <int kInputSize, int kCodecSize, bool kSingleChain, bool kCommonCase>
struct CombineTraits {
  static constexpr int kInput = kInputSize;  // bytes of an element of y
  static constexpr bool kSingle = kSingleChain;
  static constexpr bool kCommon = kCommonCase;
  using Input = Elements<kInput>;
  using Output = Packets<kCodecSize>;
};

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 2)
    combine_kernel(const __grid_constant__ CombineArgs a) {
  constexpr bool kCommon = Traits::kCommon;
  __shared__ Block block;
  __shared__ std::uint32_t parameters;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Crew crew;
  const bool sends = kCommon || a.halves.send;
  const bool receives = kCommon || a.halves.receive;
  let_next_start();
  if (threadIdx.x == kGuardWarp * 32) touch_parameters(a, &parameters);

  const int steps = static_cast<int>(a.steps_divisor.divisor);
  const int warps = crew.workers * kBlockWarps;
  const int place = warp * crew.workers + static_cast<int>(blockIdx.x);
  const int first_index = quotient(place, a.steps_divisor);
  const int first_element = (place - first_index * steps) * kStepElements + lane * kLaneElements;
  // Warps with nothing to send are the first to take.
  const int receive_place = crew.works ? warps - 1 - place : 0;
  const int receive_tasks = crew.works ? a.tokens * steps : 0;
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  await_previous();

  // Everything that is needed first is asked for at once, y as soon as its rows are known.
  HandleState state;
  if (kCommon || !a.refused) state = read_handle(handle.header(), g.fingerprint, g.rank);
  const bool usable = state.usable && fits(a, state);
  const int records = usable ? state.records : 0;
  const std::uint8_t layout = state.layout;
  int rotation = 0;
  Record record;
  Rows<Traits> rows;
  if (threadIdx.x == kEpochWarp * 32) read_epochs(g, Kind::combine, block);
  Guard guard(g, Kind::combine, sends && warp == kGuardWarp ? lane : kPeersMax);
  if (usable) {
    // Many records: the homes are served from the next rank on, so that the ranks do not all send to
    // the same one. Few: nothing is worth another load before the first record's.
    if (a.tokens > kFewTokens && g.rank + 1 < g.ranks) {
      rotation = static_cast<int>(handle.source_offsets()[g.rank + 1]);
    }
    if (sends && crew.works && first_index < g.ranks * g.layout.shape().tokens) {
      // Whether or not there is such a record.
      record = read_record(handle, g, rotated(first_index, rotation, records), lane);
      if (!Traits::kSingle && first_index < records) {
        const bool rank_major = layout == static_cast<std::uint8_t>(Layout::rank_major);
        rows.ask(a, record.row, summed_routes(record, rank_major), first_element);
      }
    }
  }
  __syncthreads();
  const Progress progress = sends ? block.sent : block.received;
  Combine c(a, progress, mix(a.signature, state.dispatch * 4 + layout), block.suspects, layout);

  if (sends) {
    guard.pass(g, progress.epoch + 1, block.suspects, a.timeout_ns);
    __syncthreads();
    if (!kCommon && !Traits::kSingle && usable && a.weights_given && !a.plain_sum && crew.works) {
#pragma unroll 1
      for (int token = warps - 1 - place; token < a.tokens; token += warps) {
        HomeToken from = read_token(g, handle, token, lane);
        const float weight = read_weight(a, handle, token, lane);
#pragma unroll 1
        for (std::uint32_t ranks = find_ranks(g, from); ranks != 0; ranks &= ranks - 1) {
          const int rank = __ffs(static_cast<int>(ranks)) - 1;
          send_weights_to(c, out_at(g, rank, g.layout.weight(g.rank, c.bank, token)),
                          from.owner == rank ? weight : 0.0F, lane);
        }
      }
    }
    if (crew.clerk) {
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
      if (warp == kGuardWarp) tell(g, Kind::combine, block.received.epoch, block.suspects, lane);
    }
    const int send_tasks = crew.works ? records * steps : 0;
    int index = first_index;
#pragma unroll 1
    for (int task = place; task < send_tasks;) {
      const int step = task - index * steps;
      const int at = rotated(index, rotation, records);
      task += warps;
      const int next_index = quotient(task, a.steps_divisor);
      Record next;
      if (task < send_tasks) {
        next = read_record(handle, g, rotated(next_index, rotation, records), lane);
      }
      send_record<Traits>(c, record, rows, at, step, lane);
      record = next;
      index = next_index;
      if (!Traits::kSingle) {
        const bool rank_major = layout == static_cast<std::uint8_t>(Layout::rank_major);
        rows.ask(a, record.row, summed_routes(record, rank_major),
                 (task - index * steps) * kStepElements + lane * kLaneElements);
      }
    }
  }

  if (kCommon && warp == kEpochWarp) close(g, Kind::combine, Halves{true, true}, block, lane);
  if (receives) {
    if (usable && (kCommon || !a.drop)) {
#pragma unroll 1
      for (int task = receive_place; task < receive_tasks; task += warps) {
        const int token = quotient(task, a.steps_divisor);
        const HomeToken home = read_token(g, handle, token, lane);
        if constexpr (Traits::kSingle) {
          chain_token<Traits>(c, home, token, task - token * steps, lane);
        } else {
          sum_token<Traits>(c, home, token, task - token * steps, lane);
        }
      }
      if (!kCommon && a.weights_home != nullptr && crew.works) {
#pragma unroll 1
        for (int token = place; token < a.tokens; token += warps) take_row_weights(c, token, lane);
      }
    }
    if (crew.clerk && (!usable || (!kCommon && a.drop))) drain_answers(&a, c.tag, c.bank);
    // Every peer's cell, also of those that had nothing to say: the proof that banks are reused by.
    if (crew.clerk && warp == 0) {
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
  if constexpr (!kCommon) {
    // Halves may run side by side: what a half has not done yet must not be told by the other.
    __syncthreads();
    if (warp == kEpochWarp) close(g, Kind::combine, Halves{sends, receives}, block, lane);
  }
}

template <bool kSingle, bool kCommon>
auto kernel_for(const CombineArgs& a) {
  using Kernel = void (*)(const CombineArgs);
  const bool wide_y = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return wide_y ? Kernel{combine_kernel<CombineTraits<4, 4, kSingle, kCommon>>}
                  : Kernel{combine_kernel<CombineTraits<2, 4, kSingle, kCommon>>};
  }
  return wide_y ? Kernel{combine_kernel<CombineTraits<4, 2, kSingle, kCommon>>}
                : Kernel{combine_kernel<CombineTraits<2, 2, kSingle, kCommon>>};
}

/// Common calls have kernels of their own, from which all that is rare is left out.
auto kernel_for(const CombineArgs& a) {
  const bool common = a.aligned && a.halves.send && a.halves.receive && !a.refused &&
                      a.handle != nullptr && !a.drop && !a.plain_sum && !a.weights_given &&
                      a.row_weights == nullptr && a.extras == 0 && a.surviving_weight == nullptr &&
                      a.weights_home == nullptr;
  if (a.single) return common ? kernel_for<true, true>(a) : kernel_for<true, false>(a);
  return common ? kernel_for<false, true>(a) : kernel_for<false, false>(a);
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
          args.handle = reinterpret_cast<const std::byte*>(&args);  // Any.
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
