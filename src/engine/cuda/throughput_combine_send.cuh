// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_send.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// combine in throughput mode, send half: the partial sum of every record, home; behind several, the answers that say
/// that they have come.
namespace sluice::engine::cuda {

/// What all blocks of an operation know of it. By a whole block.
struct Call {
  window::HandleBrief brief;
  bool usable;  // The handle is this rank's, and the tensors fit it.
  std::uint32_t signature;
  InPlace own;  // Results of rank_major are partial sums as they lie: home may pull them.

  __device__ __forceinline__ Call(const CombineArgs& a, const Desk& desk) {
    if (!a.refused) {
      brief = read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle));
    }
    usable = (brief.key == a.geometry.handle_key) & fits(a, brief);
    signature = mix(a.signature, brief.dispatch * 4 + brief.layout);
    // Also where only the receive half's tensors do not fit: peers have been told to pull.
    if (brief.key == a.geometry.handle_key && is_rank_major()) own = desk.own;
  }
  __device__ __forceinline__ bool is_rank_major() const {
    return brief.layout == static_cast<std::uint32_t>(Layout::rank_major);
  }
};

__device__ __forceinline__ Combine combine_of(const CombineArgs& a, const Call& call,
                                              const Block& block, const Progress& progress) {
  return {a,
          a.geometry,
          {const_cast<std::byte*>(a.handle), &a.handle_layout},
          call.signature,
          window::tag_of(progress.epoch + 1),
          block,
          static_cast<int>(progress.bank),
          static_cast<std::uint16_t>(call.brief.layout)};
}

/// Whether weights that were given to this combine are sent to the ranks of their experts.
template <typename Traits>
__device__ __forceinline__ bool gives_weights(const Combine& c, const Call& call) {
  return call.usable && Traits::kWeights && !Traits::kSingle && c.a.weights_given && !c.a.plain_sum;
}

/// Whether there may be other nodes: kernels for common calls know of none (is_common()).
template <typename Traits>
inline constexpr bool kCounts = !Traits::kCommon;

/// Parts of what other nodes are sent, for count_sent(): of weights, a token each; of answers, a record each. And what is
/// announced, with which both begin.
__device__ __forceinline__ std::uint32_t weight_parts(const Combine& c) {
  return 1U + static_cast<std::uint32_t>(min(c.a.tokens, c.a.weights_tokens));
}
__device__ __forceinline__ std::uint32_t answer_parts(const Call& call) {
  return 1U + (call.usable ? static_cast<std::uint32_t>(call.brief.records) : 0U);
}

/// Tells the peers, before anything else, what they will get of this rank, and where rows lie that they pull. By one warp of the
/// launch's first block, which starts before all others. Pairs with Sources::look() and await_weight().
template <typename Traits>
__device__ __forceinline__ void announce(const Combine& c, const Call& call, CombineNotes& notes,
                                         int lane) {
  const Geometry& g = c.g;
  const int row_bytes = g.hidden * (Traits::codec(c.a) == DType::f32 ? 4 : 2);
  const int sum_bytes = Traits::kSingle ? 0 : row_bytes;  // Of `single`, rows are counted apart.
  const bool weights = gives_weights<Traits>(c, call);
  std::uint32_t form = static_cast<std::uint32_t>(row_bytes) / window::kPacketBytes;
  if (Traits::kSingle) form |= window::kRowPerRoute;
  if (weights) form |= window::kWeightsBefore;
  if (!Traits::kCommon) form |= form_by_node(c.a);
  std::uint32_t word = cell_word::kRefused;
  std::uint32_t tokens = 0;
  if (call.usable && lane < g.ranks) {
    word = cell_word::kNothing;
    if (c.handle.header()->accepted.contains(lane)) {
      word = static_cast<std::uint32_t>(c.handle.source_offsets()[lane + 1] -
                                        c.handle.source_offsets()[lane]);
      if (lane != g.rank) {
        int each = static_cast<int>(window::kPacketBytes) + sum_bytes;
        if (c.a.row_weights != nullptr) each += g.layout.weight_packets() * 16;
        count_bytes(g, protocol::Kind::combine, std::int64_t{word} * each + 16);
      }
      if (gives_sums<Traits>(c, lane)) {  // As one of its node: not by itself.
        word = cell_word::kNothing;
        tokens = answered_tokens(c.handle, lane);
      }
    }
  }
  publish(g, protocol::CellKind::combine, c.bank, c.tag, word, c.signature, tokens, call.own, form,
          c.block.suspects, lane);
  if constexpr (kCounts<Traits>) {
    __syncwarp();
    if (lane != 0) return;
    const std::uint64_t epoch = c.block.sent.epoch + 1;
    if (weights) {
      count_sent(g, protocol::CellKind::weights, epoch, &notes.sent[0], 1, weight_parts(c));
    }
    count_sent(g, protocol::CellKind::combine, epoch, &notes.sent[1], 1, answer_parts(call));
  }
}

/// Home, from the lane's first element on.
template <typename Traits>
__device__ __forceinline__ void send_sum(const Combine& c, const Record& record,
                                         const float (&sum)[Traits::kSpan][kLaneElements],
                                         int element) {
  typename Traits::Output packets;
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) packets.encode(j, sum[j], Traits::codec(c.a));
  packets.push(piece_at<Traits>(c, record, 0, element), element, c.g.hidden);
}

/// The sum of a piece of a record's rows, home. Many bytes at a time: a warp waits for all of a row's piece at once.
template <typename Traits>
__device__ __forceinline__ void push_piece(const Combine& c, const Record& record, int step,
                                           int lane) {
  const CombineArgs& a = c.a;
  const int hidden = c.g.hidden;
  const int element = step * Traits::kStep + lane * kLaneElements;
  std::uint32_t left = summed_routes(c, record);
  if (left == 0) return;
  float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const int row = __shfl_sync(~0U, record.row, k);
    const float weight = __shfl_sync(~0U, record.weight, k);
    typename Traits::Input y;
    y.load(row_at(a.y, row) + within(element, hidden) * Traits::kInput, element, hidden, a.aligned);
    add_row<Traits>(a, y, weight, sum);
  }
  send_sum<Traits>(c, record, sum, element);
}

/// The answers of records that were pushed. Several are posted at once, behind one fence, which takes longer than to push a
/// short row. Who waits for them has the deadline.
class Answers {
 public:
  /// Lane i keeps the i-th.
  __device__ __forceinline__ void note(const Record& record, Answer answer, int lane) {
    if (lane == count_) {
      place_ = static_cast<std::uint32_t>(record.home) << kTokenBits |
               static_cast<std::uint32_t>(record.token);
      answer_ = answer;
    }
    ++count_;
  }
  __device__ __forceinline__ bool are_none() const { return count_ == 0; }
  __device__ __forceinline__ bool are_due(const CombineArgs& a) const {
    return count_ >= a.answers_at_once;
  }
  /// The stores of this warp come before the answers, and what it has awaited. Pairs with Summer::ask() of home.
  template <typename Traits>
  __device__ __forceinline__ void post(const Combine& c, int lane) {
    __syncwarp();
    if (lane < count_) {
      fence_system();
      answer_.store<Traits>(c, static_cast<int>(place_ >> kTokenBits),
                            static_cast<int>(place_ & ((1U << kTokenBits) - 1U)));
    }
    count_ = 0;
  }

 private:
  static constexpr int kTokenBits = 27;
  static_assert(kMaxTokens <= 1 << kTokenBits && kPeersMax <= 1 << (32 - kTokenBits));
  int count_ = 0;
  std::uint32_t place_ = 0;
  Answer answer_{};
};

/// What a warp does of the send half.
template <typename Traits>
class Sender {
 public:
  /// by_ring: whether rows can go through it.
  __device__ __forceinline__ Sender(const Combine& c, const Call& call, CombineNotes& notes,
                                    SharedAt slots, PieceFeed& pairs, bool by_ring, int lane)
      : c_(c),
        notes_(notes),
        parts_(answer_parts(call)),
        slots_(slots),
        pairs_(pairs),
        by_ring_(by_ring),
        in_place_(call.own.stride != 0),
        copies_(by_ring && !Traits::kSingle && !in_place_ && call.is_rank_major() &&
                (Traits::kCommon || c.a.y_dtype == c.a.codec)),
        lane_(lane),
        queue_(&notes.next[CombineNotes::kRecords], lane) {}

  /// Where there is something to send.
  __device__ __forceinline__ void open() {
    // Lane r: the records of home r. All homes in turn, so that their tokens become complete one after the other.
    if (lane_ < c_.g.ranks) {
      const std::int64_t* const first = c_.handle.source_offsets() + lane_;
      first_ = static_cast<int>(first[0]);
      count_ = static_cast<int>(first[1]) - first_;
    }
    const int most = __reduce_max_sync(~0U, count_);
    if (in_place_) return queue_.open((most + 31) / 32 * c_.g.ranks);
    queue_.open(most * c_.g.ranks);
    ask_next();
  }

  /// Sends some more. Whether there was anything to send.
  __device__ __forceinline__ bool send_next() {
    if (in_place_) {
      const int item = queue_.take();
      if (item < 0) return false;
      const Turn turn = turn_of(item);
      const int first = turn.number * 32;
      answer_in_place(__shfl_sync(~0U, first_, turn.home) + first,
                      min(__shfl_sync(~0U, count_, turn.home) - first, 32));
      return true;
    }
    const int index = index_;
    const Record record = record_;
    if (index == kEnd) return false;
    ask_next();
    push(record, index);
    if constexpr (kCounts<Traits>) ++unsaid_;
    return true;
  }

  /// Before this warp waits for anybody.
  __device__ __forceinline__ void settle() {
    if (!answers_.are_none()) {
      if (copies_ && !mutant(KernelMutant::answered_too_early)) await_groups();
      answers_.template post<Traits>(c_, lane_);
    }
    if constexpr (kCounts<Traits>) count();
  }
  /// Before it uses the ring for anything else.
  __device__ __forceinline__ void leave_ring() {
    if (!copies_ || ring_left_) return;
    if (!mutant(KernelMutant::slot_not_awaited)) await_groups_read<0>();
    __syncwarp();
    ring_left_ = true;
  }

 private:
  /// The records that are done, and have been answered.
  __device__ __forceinline__ void count() {
    if (unsaid_ == 0) return;
    __syncwarp();
    if (lane_ == 0) {
      count_sent(c_.g, protocol::CellKind::combine, c_.block.sent.epoch + 1, &notes_.sent[1],
                 unsaid_, parts_);
    }
    unsaid_ = 0;
  }
  __device__ __forceinline__ Record read(int index) const {
    return RecordPlace(c_.handle, c_.g, index, lane_).read(c_.g, lane_);
  }
  struct Turn {
    int number;
    int home;
  };
  __device__ __forceinline__ Turn turn_of(int item) const {
    const int number = quotient(item, c_.g.ranks_divisor);
    const int home = c_.g.rank + 1 + item - number * c_.g.ranks;
    return {number, home >= c_.g.ranks ? home - c_.g.ranks : home};
  }
  /// Asks for the record after the one that is sent next.
  __device__ __forceinline__ void ask_next() {
    for (;;) {
      index_ = kEnd;
      const int item = queue_.take();
      if (item < 0) return;
      const Turn turn = turn_of(item);
      if (turn.number >= __shfl_sync(~0U, count_, turn.home)) continue;  // Other homes have more.
      index_ = __shfl_sync(~0U, first_, turn.home) + turn.number;
      const RecordPlace place(c_.handle, c_.g, index_, lane_);
      // Nothing is worked out of it before it is sent.
      record_ = {load_now(place.home), load_now(place.token), load_now(place.row),
                 load_now(place.weight)};
      return;
    }
  }

  __device__ __forceinline__ void push(Record record, int index) {
    const CombineArgs& a = c_.a;
    // Another's handle may say anything.
    record.row = lane_ < c_.g.top_k ? min(record.row, a.y_last_row) : Handle::kRowAbsent;
    if (!is_sent(c_, record)) return;
    Recorder<false> quiet(c_.g.recording);
    if (awaits_weights<Traits>(c_) && !has_weights(c_, record.home, record.token, lane_)) settle();
    std::uint64_t began = 0;
    Patience patience(c_.g, a.timeout_ns, began);
    const Answer answer = weigh_record<Traits>(c_, record, index, patience, quiet, lane_);
    if (Traits::kWeights && is_given_up(c_, record, patience)) return;
    if (copies_) {
      copy_home(record);
    } else if (!Traits::kSingle && by_ring_) {
      sum_home(record);
    } else {
#pragma unroll 1
      for (int step = 0; step < static_cast<int>(a.steps_divisor.divisor); ++step) {
        if constexpr (Traits::kSingle) {
          send_rows<typename Traits::OneStep>(c_, record, step, lane_);
        } else {
          push_piece<Traits>(c_, record, step, lane_);
        }
      }
    }
    if (!Traits::kCommon && a.row_weights != nullptr) send_row_weights<Traits>(c_, record, lane_);
    if (answers_.are_due(a)) settle();  // If they are still: a record without rows.
    answers_.note(record, answer, lane_);
  }

  /// All pieces of a record's sum, by way of shared memory.
  __device__ __forceinline__ void sum_home(const Record& record) {
    const std::uint32_t rows = summed_routes(c_, record);
    if (rows == 0) return;
    RowsFeed<typename Traits::Input> pieces(slots_, row_at(c_.a.y, max(record.row, 0)), rows,
                                            c_.g.hidden, lane_);
    if (answers_.are_due(c_.a)) settle();  // While these come.
    const int steps = static_cast<int>(c_.a.steps_divisor.divisor);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
      for (std::uint32_t left = rows; left != 0; left &= left - 1) {
        const float weight = __shfl_sync(~0U, record.weight, __ffs(static_cast<int>(left)) - 1);
        add_row<Traits>(c_.a, pieces.take(), weight, sum);
      }
      send_sum<Traits>(c_, record, sum, step * Traits::kStep + lane_ * kLaneElements);
    }
  }

  /// A row that is a partial sum as it lies: through shared memory, not through registers.
  __device__ __forceinline__ void copy_home(const Record& record) {
    const std::uint32_t rows = summed_routes(c_, record);
    if (rows == 0) return;
    const int row = __shfl_sync(~0U, record.row, __ffs(static_cast<int>(rows)) - 1);
    const std::byte* const from = row_at(c_.a.y, row);
    std::byte* const to = row_out<Traits>(
        c_, record.home, c_.g.layout.combine_row(c_.bank, c_.slot(record.token, 0)));
    constexpr int kPiece = PairRing::kSlotBytes;
    const int bytes = c_.g.hidden * Traits::kInput;
#pragma unroll 1
    for (int first = 0; first < bytes; first += 2 * kPiece) {
      const int second = min(first + kPiece, bytes);
      const int end = min(second + kPiece, bytes);
      // What was copied before has left both slots, and what was summed before has been read.
      if (!mutant(KernelMutant::slot_not_awaited)) await_groups_read<0>();
      __syncwarp();
      if (ring_left_) order_copies();
      ring_left_ = false;
      pairs_.ask(from + first, second - first);
      if (second < end) pairs_.ask(from + second, end - second);
      if (answers_.are_due(c_.a)) settle();  // While these come.
      SharedAt piece = pairs_.take();
      if (lane_ == 0) take_out(to + first, piece, second - first);
      if (second < end) {
        piece = pairs_.take();
        if (lane_ == 0) take_out(to + second, piece, end - second);
      }
      close_group();
    }
  }

  /// The numbers of the rows of so many records, 32 at most, a record to a lane. Home pulls them.
  __device__ __forceinline__ void answer_in_place(int first, int count) {
    const Geometry& g = c_.g;
    if (count <= 0) return;  // Other homes have more.
    if (!Traits::kCommon && c_.a.row_weights != nullptr) {
#pragma unroll 1
      for (int index = first; index < first + count; ++index) {
        Record record = read(index);
        record.row = min(record.row, c_.a.y_last_row);
        if (is_sent(c_, record)) send_row_weights<Traits>(c_, record, lane_);
      }
    }
    constexpr int kAtOnce = 8;  // routes
    const int index = first + min(lane_, count - 1);
    Record record;
    record.home = load_now(c_.handle.record_rank() + index);
    record.token = load_now(c_.handle.record_token() + index);
    Answer answer{};
#pragma unroll 1
    for (int from = 0; from < g.top_k; from += kAtOnce) {
      int rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        rows[i] = Handle::kRowAbsent;
        if (from + i < g.top_k) {
          rows[i] = load_now(c_.handle.route_rows() + index * g.top_k + from + i);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = min(rows[i], c_.a.y_last_row);
        if (row < 0) continue;
        answer.routes |= 1U << (from + i);
        answer.rows = static_cast<std::uint32_t>(row);  // The same of all.
      }
    }
    // y, of kernels before this one, comes before all answers of this warp, and the weights before those that say so.
    if (!fenced_ || c_.a.row_weights != nullptr) {
      __syncwarp();
      fence_system();
      fenced_ = true;
    }
    if (lane_ < count && is_sent(c_, record)) answer.store<Traits>(c_, record.home, record.token);
  }

  const Combine& c_;
  CombineNotes& notes_;
  std::uint32_t parts_;       // See answer_parts().
  std::uint32_t unsaid_ = 0;  // Records that are done, but were not counted.
  SharedAt slots_;            // For sums.
  PieceFeed& pairs_;          // The same memory.
  bool by_ring_;
  bool in_place_;
  bool copies_;
  bool fenced_ = false;  // Answers in place.
  int lane_;
  Queue queue_;
  int first_ = 0;
  int count_ = 0;
  static constexpr int kEnd = -1;
  int index_ = kEnd;  // Of the record that is sent next.
  Record record_;
  bool ring_left_ = false;  // By what is copied, to what is summed.
  Answers answers_;
};

}  // namespace sluice::engine::cuda
