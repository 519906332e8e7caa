// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "engine/cuda/combine_parts.cuh"
#include "engine/cuda/counters.cuh"

/// combine, send half: the expert's rank forms one partial sum per record and pushes it home.
namespace sluice::engine::cuda {

/// Weights of one token that were given to combine: lane k has route k.
struct GivenWeights {
  HomeToken from;
  std::uint32_t ranks = 0;
  float weight = 0.0F;
};
__device__ __forceinline__ GivenWeights read_given(const Combine& c, int token, int lane) {
  GivenWeights given;
  given.from = read_token(c, token, lane, given.ranks);
  given.weight = read_weight(c, token, lane);
  return given;
}

/// Sends them to the ranks of their experts. A token by one warp.
__device__ __forceinline__ void send_weights(const Combine& c, const GivenWeights& given, int token,
                                             int lane) {
  const std::uint32_t ranks = given.ranks & ~c.block.suspects;
  for_each_peer(c.g, ranks, [&](int rank) {
    send_weights_to(c, out_at(c.g, rank, c.g.layout.weight(c.bank, token)),
                    given.from.owner == rank ? given.weight : 0.0F, lane);
  });
  if (lane == 0) {
    const int others = __popc(ranks & ~(1U << c.g.rank));
    count_bytes(c.g, protocol::Kind::combine, others * c.g.layout.weight_packets() * 16);
  }
}

/// The routes of a record whose rows are summed.
__device__ __forceinline__ std::uint32_t summed_routes(const Combine& c, const Record& record) {
  const std::uint32_t stored = lanes_with(record.row >= 0);
  const bool rank_major = c.layout == static_cast<std::uint16_t>(Layout::rank_major);
  return rank_major ? stored & (~stored + 1) : stored;
}

/// Adds a row of y, weighted, to a sum.
template <typename Traits>
__device__ __forceinline__ void add_row(const CombineArgs& a, const typename Traits::Input& y,
                                        float weight, float (&sum)[Traits::kSpan][kLaneElements]) {
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) {
    float v[kLaneElements];
    y.floats(j, v, Traits::y_dtype(a));
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) {
      sum[j][e] = mutant(KernelMutant::product_rounded) ? weight * v[e] + sum[j][e]
                                                        : __fmaf_rn(weight, v[e], sum[j][e]);
    }
  }
}

/// The same in shared memory, where there are many tokens: the next record's rows are asked for before this
/// one's sum is sent.
template <typename Traits>
class StagedRows {
 public:
  static constexpr int kRows = 4;
  static constexpr int kSharedBytes = kBlockWarps * kRows * Traits::kSpan * 32 * 16;

  __device__ __forceinline__ explicit StagedRows(std::byte* shared)
      : staged_(reinterpret_cast<uint4*>(shared) + threadIdx.x) {}
  /// Copies are not ordered with later ones to the same place.
  __device__ __forceinline__ void forget() { await_copies(); }

  __device__ __forceinline__ void ask(const CombineArgs& a, int own_row, std::uint32_t left,
                                      int element) {
    const int hidden = a.geometry.hidden;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (left == 0) return;
      const int row = __shfl_sync(~0U, own_row, __ffs(static_cast<int>(left)) - 1);
      left &= left - 1;
      const std::byte* const at = Traits::row(a.y, row, element * Traits::kInput);
#pragma unroll
      for (int j = 0; j < Traits::kSpan; ++j) {
        if (element + j * kStepElements < hidden) {
          copy_async(&staged(i, j), at + j * kStepElements * Traits::kInput);
        }
      }
    }
  }
  __device__ __forceinline__ std::uint32_t add(const CombineArgs& a, float own_weight,
                                               std::uint32_t left,
                                               float (&sum)[Traits::kSpan][kLaneElements]) {
    if (!mutant(KernelMutant::copies_not_awaited)) await_copies();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (left == 0) return 0;
      const float weight = __shfl_sync(~0U, own_weight, __ffs(static_cast<int>(left)) - 1);
      left &= left - 1;
      typename Traits::Input y;
#pragma unroll
      for (int j = 0; j < Traits::kSpan; ++j) y.word[j][0] = staged(i, j);
      add_row<Traits>(a, y, weight, sum);
    }
    return left;
  }

 private:
  /// Of this lane only.
  __device__ __forceinline__ uint4& staged(int row, int j) const {
    return staged_[(row * Traits::kSpan + j) * kBlockThreads];
  }

  uint4* staged_;
};

/// The first rows of one piece of a record, in registers. What is asked for at one place in the code must be
/// added at one place: what several places ask for is moved to where they meet, and the compiler waits for it
/// there.
template <typename Traits>
class HeldRows {
 public:
  static constexpr int kSharedBytes = Traits::kCommon ? StagedRows<Traits>::kSharedBytes : 0;

  __device__ __forceinline__ explicit HeldRows(std::byte* shared) : more_(shared) {}
  /// Before others are asked for: what was asked for is not wanted.
  __device__ __forceinline__ void forget() {
    if (Traits::kCommon) more_.forget();
  }

  /// Asks for the first rows of the lanes in `left`. Where there are fewer, for one of them again: without a
  /// branch.
  __device__ __forceinline__ void ask(const CombineArgs& a, int own_row, std::uint32_t left,
                                      int element) {
    if (left == 0) return;
    const int hidden = a.geometry.hidden;
    const std::uint32_t all = left;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int from = __ffs(static_cast<int>(left != 0 ? left : all)) - 1;
      const int row = __shfl_sync(~0U, own_row, from);
      y_[i].load(Traits::row(a.y, row, within(element, hidden) * Traits::kInput), element, hidden,
                 Traits::kCommon || a.aligned);
      left &= left - 1;
    }
    if (Traits::kCommon && left != 0) more_.ask(a, own_row, left, element);
  }
  /// Adds them; returns the lanes that remain.
  __device__ __forceinline__ std::uint32_t add(const CombineArgs& a, float own_weight,
                                               std::uint32_t left,
                                               float (&sum)[Traits::kSpan][kLaneElements]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float weight = __shfl_sync(~0U, own_weight, (__ffs(static_cast<int>(left)) - 1) & 31);
      if (left == 0) return 0;
      left &= left - 1;
      add_row<Traits>(a, y_[i], weight, sum);
    }
    if (Traits::kCommon && left != 0) left = more_.add(a, own_weight, left, sum);
    return left;
  }

 private:
  static constexpr int kRows = 4;
  typename Traits::Input y_[kRows];
  StagedRows<Traits> more_;
};

template <typename Traits>
using Rows = std::conditional_t<(Traits::kSpan > 1), StagedRows<Traits>, HeldRows<Traits>>;

/// Whether rows are summed with their routes' weights.
template <typename Traits>
__device__ __forceinline__ bool is_weighted(const Combine& c) {
  return c.layout != static_cast<std::uint16_t>(Layout::rank_major) &&
         (Traits::kCommon || !c.a.plain_sum);
}

/// Whether records' weights come from home.
template <typename Traits>
__device__ __forceinline__ bool awaits_weights(const Combine& c) {
  return Traits::kWeights && (Traits::kCommon || (!Traits::kSingle && c.a.weights_given)) &&
         is_weighted<Traits>(c);
}

/// What home is told of a record, in a packet { tag, routes, signature, rows }: which of its routes are in the sum,
/// and which have a row.
struct Answer {
  std::uint32_t routes;
  std::uint32_t rows;

  template <typename Traits>
  __device__ __forceinline__ void store(const Combine& c, int home, int token) const {
    store_packet(answer_out<Traits>(c, home, c.g.layout.answer(c.bank, token)),
                 make_uint4(c.tag, routes, c.signature, rows));
  }
};

/// Whether a record is sent at all.
__device__ __forceinline__ bool is_sent(const Combine& c, const Record& record) {
  return record.home >= 0 && ((c.block.suspects >> record.home) & 1U) == 0;
}

/// Whether home was given up while its weights were awaited: then a sum without them must not be taken for one. After
/// weigh_record(), by a warp, whose lanes may not see it at the same time.
__device__ __forceinline__ bool is_given_up(const Combine& c, const Record& record,
                                            const Patience& patience) {
  if (!patience.was_weary() || mutant(KernelMutant::weights_not_missed)) return false;
  return __any_sync(~0U, ((suspects_by_now(c.g) >> record.home) & 1U) != 0);
}

/// The weights of a record: from home, if they come from there, and those of duplicates merged.
template <typename Traits, bool kRecords>
__device__ __forceinline__ Answer weigh_record(const Combine& c, Record& record, int index,
                                               Patience& patience, Recorder<kRecords>& recorder,
                                               int lane) {
  const bool weighted = is_weighted<Traits>(c);
  if (!mutant(KernelMutant::given_weights_ignored) && awaits_weights<Traits>(c)) {
    record.weight = await_weight(c, record.home, record.token, patience, lane);
    recorder.mark(Phase::wait);
  }
  const std::uint32_t stored = lanes_with(record.row >= 0);
  Answer answer{stored, stored};
  if (lanes_with(record.row == Handle::kRowDuplicate) != 0) {
    const Merged merged = merge_routes(c.handle.local_ids() + index * c.g.top_k, c.g.top_k,
                                       record.row, record.weight);
    record.weight = merged.weight;
    answer.routes = merged.answered;
  }
  if (!weighted) record.weight = 1.0F;
  return answer;
}

/// The weights of a row of rank_major, home.
template <typename Traits>
__device__ __forceinline__ void send_row_weights(const Combine& c, const Record& record, int lane) {
  const CombineArgs& a = c.a;
  float value = 0.0F;
  if (record.row >= 0) {  // The record's own.
    value = a.row_weights[record.row * a.row_weights_stride[0] + lane * a.row_weights_stride[1]];
  }
  send_weights_to(c,
                  answer_out<Traits>(c, record.home, c.g.layout.row_weight(c.bank, record.token)),
                  value, lane);
}

/// What comes before the rows of a record's piece: its weights and, with the first piece, the answer. Returns
/// whether it is sent at all.
template <typename Traits, bool kRecords>
__device__ __forceinline__ bool begin_record(const Combine& c, Record& record, int index, int step,
                                             Patience& patience, Recorder<kRecords>& recorder,
                                             int lane) {
  if (!is_sent(c, record)) return false;
  const Answer answer = weigh_record<Traits>(c, record, index, patience, recorder, lane);
  if (Traits::kWeights && is_given_up(c, record, patience)) return false;
  if (step == 0 && lane == 0) answer.store<Traits>(c, record.home, record.token);
  if (!Traits::kCommon && step == 0 && c.a.row_weights != nullptr) {
    send_row_weights<Traits>(c, record, lane);
  }
  return true;
}

/// Where this lane's packets of a piece lie at home.
template <typename Traits>
__device__ __forceinline__ std::byte* piece_at(const Combine& c, const Record& record, int k,
                                               int element) {
  return row_out<Traits>(c, record.home, c.g.layout.combine_row(c.bank, c.slot(record.token, k))) +
         element * Traits::Output::kElementBytes;
}

/// A piece of one record, whose first rows are asked for. Calls ask_next() once it needs `rows` no more,
/// before it stores the sum.
template <typename Traits, bool kRecords, typename AskNext>
__device__ __forceinline__ void send_sum(const Combine& c, Record& record, Rows<Traits>& rows,
                                         int index, int step, Patience& patience,
                                         Recorder<kRecords>& recorder, int lane,
                                         const AskNext& ask_next) {
  const CombineArgs& a = c.a;
  if (!begin_record<Traits>(c, record, index, step, patience, recorder, lane)) {
    rows.forget();
    return ask_next();
  }
  std::uint32_t left = summed_routes(c, record);
  if (left == 0) return ask_next();
  const int element = step * Traits::kStep + lane * kLaneElements;
  float sum[Traits::kSpan][kLaneElements] = {};
  left = rows.add(a, record.weight, left, sum);
#pragma unroll 1
  while (left != 0) {
    Rows<Traits> further = rows;
    further.ask(a, record.row, left, element);
    left = further.add(a, record.weight, left, sum);
  }
  typename Traits::Output packets;
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) packets.encode(j, sum[j], Traits::codec(a));
  std::byte* const to = piece_at<Traits>(c, record, 0, element);
  recorder.mark(Phase::sum);
  ask_next();
  packets.push(to, element, c.g.hidden);
  recorder.mark(Phase::put);
}

/// With `single`: the rows of a record's piece as they are.
template <typename Traits>
__device__ __forceinline__ void send_rows(const Combine& c, const Record& record, int step,
                                          int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const int element = step * Traits::kStep + lane * kLaneElements;
  const std::uint32_t stored = lanes_with(record.row >= 0);
  if (step == 0 && lane == 0 && record.home != g.rank) {
    count_bytes(g, protocol::Kind::combine,
                __popc(stored) * g.hidden * (a.codec == DType::f32 ? 4 : 2));
  }
#pragma unroll 1
  for (std::uint32_t left = stored; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    typename Traits::Input y;
    y.load(
        row_at(a.y, __shfl_sync(~0U, record.row, k)) + within(element, g.hidden) * Traits::kInput,
        element, g.hidden, a.aligned);
    float v[kLaneElements];
    y.floats(0, v, a.y_dtype);
    typename Traits::Output packets;
    packets.encode(0, v, a.codec);
    packets.push(piece_at<Traits>(c, record, k, element), element, g.hidden);
  }
}

}  // namespace sluice::engine::cuda
