// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/carriers.cuh"
#include "engine/cuda/throughput_combine_receive.cuh"
#include "engine/cuda/throughput_end.cuh"

/// combine in throughput mode, one kernel: the expert's rank forms one partial sum per record and pushes it home,
/// into the slot of home's token; home adds those of a token once they have come. A warp pushes until its token is complete, or
/// nothing is left to push.
namespace sluice::engine::cuda {
namespace {

/// Weights that were given to combine, to the ranks of their experts: before anybody waits for any.
template <typename Traits>
__device__ __forceinline__ void send_given_weights(const Combine& c, CombineNotes& notes,
                                                   int lane) {
  Queue queue(&notes.next[CombineNotes::kWeights], lane);
  queue.ask_ahead();
  queue.open(min(c.a.tokens, c.a.weights_tokens));
  std::uint32_t done = 0;
  for (int token = queue.take(); token >= 0; token = queue.take()) {
    send_weights(c, read_given(c, token, lane), token, lane);
    ++done;
  }
  if constexpr (kCounts<Traits>) {
    __syncwarp();
    if (lane != 0 || done == 0) return;
    count_sent(c.g, protocol::CellKind::weights, c.block.sent.epoch + 1, &notes.sent[0], done,
               weight_parts(c));
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 1)
    combine_kernel(__grid_constant__ Parameter<CombineArgs> a,
                   __grid_constant__ Parameter<Desk> desk) {
  __shared__ Block block;
  __shared__ PairRing ring;
  const Geometry& g = a.geometry;
  if (carries(g))
    return carry_meanwhile<128>(&g, protocol::Kind::combine, a.halves.receive, throughput_memory);
  const int lane = static_cast<int>(threadIdx.x % 32);
  CombineNotes& notes = *desk.combine_notes;
  // Before this warp asks for anything: a fence waits for that, too.
  const bool announces = a.halves.send && Seat::own(g).place == 0;
  if (announces) fence_system();
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  const Call call(a, desk);
  Opening opening(a, handle, notes, lane);
  Part part(g, protocol::Kind::combine, a.halves, a.timeout_ns, block);
  const Seat& seat = part.seat;
  opening.look_on(a, handle, call, lane);
  part.meet();
  // Of a whole operation both are the same: it begins when no half is left.
  const Combine c = combine_of(a, call, block, a.halves.send ? block.sent : block.received);
  PieceFeed pairs(ring, throughput_memory, seat.warp, lane);
  const bool by_ring = a.aligned && desk.ring_bytes == PairRing::kBytes;
  const SharedAt slots =
      RowsFeed<typename Traits::Input>::slots_of(throughput_memory, seat.warp, lane);
  if (announces) announce<Traits>(c, call, opening, notes, lane);
  bool pushes = a.halves.send && call.usable && !call.numbered;
  const bool sums = a.halves.receive && call.usable && !a.drop;
  if (a.halves.send && gives_weights<Traits>(c, call)) {
    send_given_weights<Traits>(c, notes, lane);
  }
  part.recorder.mark(Phase::count);
  Sender<Traits> sender(c, call, opening, notes, slots, pairs, by_ring, lane);
  Summer<Traits> summer(c, desk, opening, slots, by_ring, lane);
  if (pushes) {
    pushes = sender.open(opening.in_place);
    if (!pushes) part.recorder.mark(Phase::put);
  }
  if (sums) summer.claim();
#pragma unroll 1
  while (pushes || summer.has_token()) {
    const bool ready = summer.has_token() && summer.is_ready();
    if (pushes && !ready) {
      if (summer.has_token()) summer.ask();
      pushes = sender.send_next();
      if (!pushes) {
        sender.settle();  // Nothing more will be answered with them.
        part.recorder.mark(Phase::put);
      }
      continue;
    }
    sender.leave_ring();
    if (!ready) {
      sender.settle();
      summer.await();
    }
    summer.sum();
  }
  sender.settle();
  summer.finish();
  part.recorder.mark(Phase::sum);
  if (a.halves.receive && seat.place == 0) {
    const Arrival arrival = await_arrivals(g, protocol::CellKind::combine, c.bank, c.tag,
                                           c.signature, block, a.timeout_ns, lane);
    const std::uint32_t missing = lanes_with(arrival.missing);
    const std::uint32_t refused = lanes_with(arrival.refused);
    const std::uint32_t mismatched = call.usable ? lanes_with(arrival.mismatched) : 0;
    if (lane == 0 && (missing | refused | mismatched) != 0) {
      atomicOr(&notes.missing, missing);
      atomicOr(&notes.refused, refused);
      atomicOr(&notes.mismatched, mismatched);
    }
  }
  end_part(
      g, protocol::Kind::combine, a.halves, a.timeout_ns, block, &notes.read, desk.done, false,
      call.own.stride != 0, seat, [&] { mend_sums<Traits>(a, desk, block, c, sums, seat); },
      [&](int lane_of_last) {
        if (a.halves.receive) say_what_came(a, notes, lane_of_last);
        __syncwarp();
        if (lane_of_last == 0) notes = CombineNotes{};
      });
  part.close_half();
  count_worked(g, protocol::Kind::combine, a.halves.receive);
}

using Kernel = void (*)(Parameter<CombineArgs>, Parameter<Desk>);

/// Steps of kStepElements that a warp does at once: what fits into a slot of the ring.
template <int kInput, int kCodec>
constexpr int kSpan = kInput == 2 && kCodec == 2 ? 4 : 2;
template <int kInput, int kCodec, bool kSingle>
constexpr Kernel general_kernel = combine_kernel<
    CombineTraits<kInput, kCodec, kSpan<kInput, kCodec>, kSingle, false, true, true>>;
template <bool kWeights>
constexpr Kernel common_kernel =
    combine_kernel<CombineTraits<2, 2, kSpan<2, 2>, false, true, kWeights, true>>;

Kernel kernel_for(const CombineArgs& a) {
  if (is_common(a)) return a.weights_given ? common_kernel<true> : common_kernel<false>;
  const bool wide = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return a.single ? (wide ? general_kernel<4, 4, true> : general_kernel<2, 4, true>)
                    : (wide ? general_kernel<4, 4, false> : general_kernel<2, 4, false>);
  }
  return a.single ? (wide ? general_kernel<4, 2, true> : general_kernel<2, 2, true>)
                  : (wide ? general_kernel<4, 2, false> : general_kernel<2, 2, false>);
}

/// What home could sum meanwhile should not wait for long: fewer where rows are long.
int answers_at_once(const CombineArgs& a) {
  constexpr int kMost = 8;
  static_assert(kMost <= 32);  // A lane keeps one.
  if (a.single) return 1;      // A record has as many rows as it has routes.
  constexpr int kBytes = 56 << 10;
  const int row_bytes = a.geometry.hidden * (a.codec == DType::f32 ? 4 : 2);
  return std::clamp(kBytes / row_bytes, 1, kMost);
}

}  // namespace

int launch_throughput_combine(CombineArgs& a, const Desk& desk, const Launch& launch) {
  const bool narrow = a.codec != DType::f32 && a.y_dtype != DType::f32;
  const int step = (narrow ? kSpan<2, 2> : kSpan<4, 4>)*kStepElements;
  a.taken_divisor = Divisor((a.geometry.hidden + step - 1) / step);
  a.answers_at_once = answers_at_once(a);
  a.steps_divisor =
      a.single ? Divisor((a.geometry.hidden + kStepElements - 1) / kStepElements) : a.taken_divisor;
  Launch own = launch;
  own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
  Desk of_halves = desk;
  const Desk::Half half = a.halves.receive ? Desk::kReceive : Desk::kSend;
  of_halves.combine_notes += half;
  of_halves.done += half;
  const std::size_t shared = std::max(static_cast<std::size_t>(desk.ring_bytes), kCarrierBytes);
  return launch_kernel(kernel_for(a), own, shared, a, of_halves);
}

int load_throughput_combine_kernels() {
  int error = cudaSuccess;
  const int shared = std::max(throughput_ring_bytes(), static_cast<int>(kCarrierBytes));
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (int bits = 0; bits < 8; ++bits) {
        CombineArgs args;
        args.codec = codec;
        args.y_dtype = dtype;
        args.single = (bits & 1) != 0;
        args.aligned = (bits & 2) != 0;
        args.weights_given = (bits & 4) != 0;
        args.handle = reinterpret_cast<const std::byte*>(&args);  // Any.
        if (error == cudaSuccess) error = load_kernel(kernel_for(args), shared);
      }
    }
  }
  return error;
}

}  // namespace sluice::engine::cuda
