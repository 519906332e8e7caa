// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_send.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// combine in throughput mode, send half: the partial sum of every record, home; last, cells.
namespace sluice::engine::cuda {

/// What all kernels of an operation know of it. By a whole block.
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
    const bool rank_major = brief.layout == static_cast<std::uint32_t>(Layout::rank_major);
    if (brief.key == a.geometry.handle_key && rank_major) own = desk.own;
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

/// Home, from the lane's first element on.
template <typename Traits>
__device__ __forceinline__ void send_sum(const Combine& c, const Record& record,
                                         const float (&sum)[Traits::kSpan][kLaneElements],
                                         int element) {
  typename Traits::Output packets;
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) packets.encode(j, sum[j], c.a.codec);
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

/// All pieces, by way of shared memory.
template <typename Traits>
__device__ __forceinline__ void push_by_ring(const Combine& c, const Record& record, int steps,
                                             PieceFeed& feed, int lane) {
  static_assert(Traits::kStep * Traits::kInput <= Ring::kSlotBytes);
  const CombineArgs& a = c.a;
  const std::uint32_t rows = summed_routes(c, record);
  if (rows == 0) return;
  RowsFeed pieces(feed, row_at(a.y, max(record.row, 0)), rows, c.g.hidden * Traits::kInput,
                  Traits::kStep * Traits::kInput);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
    for (std::uint32_t left = rows; left != 0; left &= left - 1) {
      const float weight = __shfl_sync(~0U, record.weight, __ffs(static_cast<int>(left)) - 1);
      typename Traits::Input y;
      y.read(pieces.take() + lane * kLaneElements * Traits::kInput);
      add_row<Traits>(a, y, weight, sum);
    }
    send_sum<Traits>(c, record, sum, step * Traits::kStep + lane * kLaneElements);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 1)
    push_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::combine, kSendHalf, a.timeout_ns, block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.sent);
  if (blockIdx.x == 0 && seat.warp == 0 && lane < g.ranks && ((block.suspects >> lane) & 1U) == 0) {
    // Before any wait for weights: who waits for this rank's, and will get none, reads it here.
    store_packet(out_at(g, lane, g.layout.cell(protocol::CellKind::weights, c.bank)),
                 make_uint4(c.tag, call.usable ? 0 : cell_word::kRefused, c.signature, 0));
  }
  if (!Traits::kSingle && call.usable && a.weights_given && !a.plain_sum) {
#pragma unroll 1
    for (int token = seat.place; token < min(a.tokens, a.weights_tokens); token += seat.warps) {
      send_weights(c, read_given(c, token, lane), token, lane);
    }
  }
  std::uint64_t began = 0;
  Patience patience(g, a.timeout_ns, began);
  Recorder<false> quiet(g.recording);
  const int records = call.usable ? static_cast<int>(call.brief.records) : 0;
  const int steps = static_cast<int>(a.steps_divisor.divisor);
  PieceFeed feed(ring, throughput_memory, seat.warp, lane);
  const bool by_ring = a.aligned && desk.ring_bytes == Ring::kBytes;
  // From the next rank's records on, so that the ranks do not all send to the same one.
  int first = 0;
  if (records != 0) first = static_cast<int>(c.handle.source_offsets()[(g.rank + 1) % g.ranks]);
#pragma unroll 1
  for (int item = seat.place; item < records; item += seat.warps) {
    int index = item + first;
    if (index >= records) index -= records;
    Record record = RecordPlace(c.handle, g, index, lane).read(g, lane);
    // Another's handle may say anything.
    record.row = min(record.row, a.y_last_row);
    if (!begin_record<Traits>(c, record, index, 0, patience, quiet, lane)) continue;
    if (call.own.stride != 0) {
      // Home pulls the row, and is told its number.
      const std::uint32_t stored = lanes_with(record.row >= 0);
      const int row = __reduce_max_sync(~0U, record.row);
      if (lane == 0) {
        store_packet(out_at(g, record.home, g.layout.answer(c.bank, record.token)),
                     make_uint4(c.tag, stored, c.signature, static_cast<std::uint32_t>(row)));
      }
      continue;
    }
    if (!Traits::kSingle && by_ring) {
      push_by_ring<Traits>(c, record, steps, feed, lane);
      continue;
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if constexpr (Traits::kSingle) {
        send_rows<Traits>(c, record, step, lane);
      } else {
        push_piece<Traits>(c, record, step, lane);
      }
    }
  }
  part.recorder.mark(Phase::put);
  if (is_last(&desk.done[Desk::kSend]) && seat.warp == 0) {
    std::uint32_t word = cell_word::kRefused;
    if (call.usable && lane < g.ranks) {
      word = cell_word::kNothing;
      if (c.handle.header()->accepted.contains(lane)) {
        word = static_cast<std::uint32_t>(c.handle.source_offsets()[lane + 1] -
                                          c.handle.source_offsets()[lane]);
        if (lane != g.rank) {
          const int bytes = g.hidden * (a.codec == DType::f32 ? 4 : 2);
          // Of `single`, rows are counted apart. Those that home pulls are counted here, too.
          int each = 16 + (Traits::kSingle ? 0 : bytes);
          if (a.row_weights != nullptr) each += g.layout.weight_packets() * 16;
          count_bytes(g, protocol::Kind::combine, std::int64_t{word} * each + 16);
        }
      }
    }
    // Whom some block has left out gets no cell.
    publish(g, protocol::CellKind::combine, c.bank, c.tag, word, c.signature, 0, call.own,
            block.suspects | suspects_by_now(g), lane);
  }
  part.close_half();
}

}  // namespace sluice::engine::cuda
