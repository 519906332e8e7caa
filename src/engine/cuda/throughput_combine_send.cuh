// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/throughput_combine_open.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// combine in throughput mode, send half: the partial sum of every record, home; behind several, the answers that say
/// that they have come.
namespace sluice::engine::cuda {

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

/// The numbers of the rows of records, which (but for row weights) say all by themselves: home pulls rows once it has acquired the
/// cell, behind which y is.
template <typename Traits>
__device__ __forceinline__ void answer_in_place(const Combine& c, RecordsInPlace& records,
                                                int lane) {
  if (records.count <= 0) return;
  if (!Traits::kCommon && c.a.row_weights != nullptr) {
#pragma unroll 1
    for (int index = records.first; index < records.first + records.count; ++index) {
      Record record = RecordPlace(c.handle, c.g, index, lane).read(c.g, lane);
      record.row = min(record.row, c.a.y_last_row);
      if (is_sent(c, record)) send_row_weights<Traits>(c, record, lane);
    }
    __syncwarp();
    fence_system();  // Before the answers that say so.
  }
  Answer answer{};
#pragma unroll 1
  for (int from = 0;;) {
#pragma unroll
    for (int i = 0; i < RecordsInPlace::kRoutesAtOnce; ++i) {
      const int row = min(records.rows[i], c.a.y_last_row);
      if (row < 0) continue;
      answer.routes |= 1U << (from + i);
      answer.rows = static_cast<std::uint32_t>(row);  // The same of all.
    }
    from += RecordsInPlace::kRoutesAtOnce;
    if (from >= c.g.top_k) break;
    records.ask_rows(c.g, c.handle, from, lane);
  }
  const Record record{records.home, records.token, 0, 0.0F};
  if (lane < records.count && is_sent(c, record)) {
    answer.store<Traits>(c, record.home, record.token);
  }
}

/// What a warp does of the send half.
template <typename Traits>
class Sender {
 public:
  /// by_ring: whether rows can go through it.
  __device__ __forceinline__ Sender(const Combine& c, const Call& call, const Opening& opening,
                                    CombineNotes& notes, SharedAt slots, PieceFeed& pairs,
                                    bool by_ring, int lane)
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
        queue_(opening.records),
        homes_(opening.homes) {}

  /// Where there is something to send. Whether sums remain to be sent: answers in place have left.
  __device__ __forceinline__ bool open(RecordsInPlace& first) {
    if (in_place_) {
      answer_all(first);
      return false;
    }
    queue_.open(homes_.most() * c_.g.ranks);
    ask_next();
    return true;
  }

  /// Sends some more. Whether there was anything to send.
  __device__ __forceinline__ bool send_next() {
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
  /// Before any token is summed: it takes next to no time, and peers would wait for who has nothing to wait for.
  __device__ __forceinline__ void answer_all(RecordsInPlace& records) {
    for (;;) {
      answer_in_place<Traits>(c_, records, lane_);
      const int item = queue_.take();
      if (item < 0) return;
      records.ask(c_.g, c_.handle, homes_, item, lane_);
    }
  }
  /// Asks for the record after the one that is sent next.
  __device__ __forceinline__ void ask_next() {
    for (;;) {
      index_ = kEnd;
      const int item = queue_.take();
      if (item < 0) return;
      const Homes::Turn turn = Homes::turn_of(c_.g, item);
      // Other homes have more.
      if (turn.number >= __shfl_sync(~0U, homes_.count(), turn.home)) continue;
      index_ = __shfl_sync(~0U, homes_.first, turn.home) + turn.number;
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

  const Combine& c_;
  CombineNotes& notes_;
  std::uint32_t parts_;       // See answer_parts().
  std::uint32_t unsaid_ = 0;  // Records that are done, but were not counted.
  SharedAt slots_;            // For sums.
  PieceFeed& pairs_;          // The same memory.
  bool by_ring_;
  bool in_place_;
  bool copies_;
  int lane_;
  Queue queue_;
  Homes homes_;
  static constexpr int kEnd = -1;
  int index_ = kEnd;  // Of the record that is sent next.
  Record record_;
  bool ring_left_ = false;  // By what is copied, to what is summed.
  Answers answers_;
};

}  // namespace sluice::engine::cuda
