// SPDX-License-Identifier: MIT
#include "engine/cuda/combine_receive.cuh"
#include "engine/cuda/combine_send.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// combine in throughput mode: the expert's rank forms one partial sum per record and pushes it home, into the slot of
/// home's token; home adds them once all have come. Three kernels: sums are pushed, and last the cells; one block
/// awaits the peers' cells; tokens are summed.
namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

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
__global__ void __launch_bounds__(kBlockThreads)
    push_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  Recorder<true> recorder(g.recording);
  begin(g, Kind::combine, true, a.timeout_ns, block, seat);
  recorder.join(Kind::combine, block.sent.epoch + 1);
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.sent);
  if (blockIdx.x == 0 && seat.warp == 0 && lane < g.ranks && ((block.suspects >> lane) & 1U) == 0) {
    // Before any wait for weights: who waits for this rank's, and will get none, reads it here.
    store_packet(out_at(g, lane, g.layout.cell(CellKind::weights, c.bank)),
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
  recorder.mark(Phase::put);
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
          count_bytes(g, Kind::combine, std::int64_t{word} * each + 16);
        }
      }
    }
    // Whom some block has left out gets no cell.
    publish(g, CellKind::combine, c.bank, c.tag, word, c.signature, 0, call.own,
            block.suspects | suspects_by_now(g), lane);
  }
  if (seat.warp == kCloseWarp) close(g, Kind::combine, Halves{true, false}, block, lane);
  recorder.mark(Phase::wait);
  recorder.finish(Role::worker);
}

/// Awaits the cells of all ranks, and decides who takes part. One block.
__global__ void __launch_bounds__(kBlockThreads)
    await_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  Recorder<true> recorder(g.recording);
  begin(g, Kind::combine, false, a.timeout_ns, block, seat);
  if (seat.warp != 0) return;
  recorder.join(Kind::combine, block.received.epoch + 1);
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.received);
  const Arrival arrival =
      await_arrivals(g, CellKind::combine, c.bank, c.tag, c.signature, block, a.timeout_ns, lane);
  if (lane < g.ranks) {
    const bool pulled = arrival.rows.stride != 0;
    desk.arrivals->rows[lane] = pulled ? desk.heaps[lane] + arrival.rows.offset : nullptr;
    desk.arrivals->stride[lane] = arrival.rows.stride;
  }
  recorder.mark(Phase::wait);
  recorder.finish(Role::keeper);
  const std::uint32_t missing = lanes_with(arrival.missing);
  const std::uint32_t refused = lanes_with(arrival.refused);
  const std::uint32_t mismatched = call.usable ? lanes_with(arrival.mismatched) : 0;
  if (lane != 0) return;
  const bool drop = !call.usable || a.drop;
  desk.arrivals->given = drop ? 0 : ((1U << g.ranks) - 1U) & ~(missing | refused | mismatched);
  desk.arrivals->lost_routes = 0;
  if ((missing | refused | mismatched) != 0) {
    add_totals(&g, Kind::combine, {}, {missing, refused, mismatched});
  }
  if (a.report == nullptr) return;
  Report report;
  report.missing.words[0] = missing;
  report.refused.words[0] = refused;
  report.mismatched.words[0] = mismatched;
  *a.report = report;
}

/// The partial sums of a token, of the ranks that have given theirs. Notes in `home` what was answered.
struct PartialSums {
  std::uint32_t ranks;
  const std::byte* own;  // Lane r: where that of rank r lies, here or, in place, there.

  __device__ __forceinline__ PartialSums(const Combine& c, const Arrivals& arrivals,
                                         HomeToken& home, std::uint32_t asked, uint4 answer,
                                         int token, int lane) {
    const Geometry& g = c.g;
    const bool given = ((asked >> lane) & 1U) != 0 && answer.x == c.tag &&
                       answer.z == c.signature && answer.y != 0;
    const std::uint32_t answered = given ? answer.y : 0;
    const std::uint32_t by_owner = __shfl_sync(~0U, answered, home.owner & 31);
    home.answered = lanes_with(home.owner >= 0 && ((by_owner >> lane) & 1U) != 0);
    ranks = lanes_with(given);
    own = in_at(g, 0, g.layout.combine_row(c.bank, c.slot(token, 0))) +
          g.layout.lane(min(lane, g.ranks - 1));
    if (given && arrivals.rows[lane] != nullptr) {
      own = arrivals.rows[lane] + static_cast<int>(answer.w) * arrivals.stride[lane];
    }
  }
};

template <typename Traits>
__device__ __forceinline__ void add_packets(const Combine& c,
                                            const typename Traits::Output& packets,
                                            float (&sum)[Traits::kSpan][kLaneElements]) {
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) {
    float v[kLaneElements];
    packets.floats(j, v, Traits::codec(c.a));
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[j][e] = sum[j][e] + v[e];
  }
}

/// A piece of a token: the partial sums of its ranks, ascending.
template <typename Traits>
__device__ __forceinline__ void add_ranks(const Combine& c, const PartialSums& sums, int element,
                                          float (&sum)[Traits::kSpan][kLaneElements]) {
  const int byte = within(element, c.g.hidden) * Traits::Output::kElementBytes;
#pragma unroll 1
  for (std::uint32_t left = sums.ranks; left != 0; left &= left - 1) {
    const std::byte* const from =
        pointer_of(const_cast<std::byte*>(sums.own), __ffs(static_cast<int>(left)) - 1);
    typename Traits::Output packets;
    packets.take(from + byte, element, c.g.hidden);
    add_packets<Traits>(c, packets, sum);
  }
}

/// All pieces, by way of shared memory.
template <typename Traits>
__device__ __forceinline__ void sum_by_ring(const Combine& c, const Arrivals& arrivals,
                                            HomeToken& home, std::uint32_t ranks, uint4 answer,
                                            int token, int steps, PieceFeed& feed, int lane) {
  constexpr int kBytes = Traits::Output::kElementBytes;
  const PartialSums sums(c, arrivals, home, ranks, answer, token, lane);
  RowsFeed pieces(feed, sums.own, sums.ranks, c.g.hidden * kBytes, Traits::kStep * kBytes);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
    for (std::uint32_t left = sums.ranks; left != 0; left &= left - 1) {
      typename Traits::Output packets;
      packets.read(pieces.take() + lane * kLaneElements * kBytes);
      add_packets<Traits>(c, packets, sum);
    }
    finish_token<Traits>(c, home, token, step, sum, lane);
  }
}

/// Likewise with `single`: one chain over the routes.
template <typename Traits>
__device__ __forceinline__ void add_chain(const Combine& c, HomeToken& home, std::uint32_t ranks,
                                          uint4 answer, int token, int element,
                                          float (&sum)[Traits::kSpan][kLaneElements], int lane) {
  const Geometry& g = c.g;
  const bool given = ((ranks >> lane) & 1U) != 0 && answer.x == c.tag && answer.z == c.signature;
  const std::uint32_t answered = given ? answer.y : 0;
  const float weight = merged_weight(home.expert, read_weight(c, token, lane), home.expected, lane);
#pragma unroll 1
  for (std::uint32_t left = home.expected; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t same = routes_to_same(home.expert, home.expected, k);
    if (__ffs(static_cast<int>(same)) - 1 != k) continue;  // Took part at its lowest route.
    const int rank = __shfl_sync(~0U, home.owner, k);
    if (((__shfl_sync(~0U, answered, rank) >> k) & 1U) == 0) continue;
    home.answered |= same;
    const float w = c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
    typename Traits::Output packets;
    packets.take(in_at(g, rank, g.layout.combine_row(c.bank, c.slot(token, k))) +
                     within(element, g.hidden) * Traits::Output::kElementBytes,
                 element, g.hidden);
#pragma unroll
    for (int j = 0; j < Traits::kSpan; ++j) {
      float v[kLaneElements];
      packets.floats(j, v, c.a.codec);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[j][e] = __fmaf_rn(w, v[e], sum[j][e]);
    }
  }
}

/// The weights of rank_major rows, home.
__device__ __forceinline__ void bring_weights_home(const Combine& c, const HomeToken& home,
                                                   std::uint32_t ranks, int token, int lane) {
  if (lane >= c.g.top_k) return;
  const int owner = max(home.owner, 0);
  const uint4 v = load_packet(in_at(c.g, owner, c.g.layout.row_weight(c.bank, token)) +
                              lane / window::kPacketWeights * 16);
  const bool come = home.owner >= 0 && ((ranks >> owner) & 1U) != 0 && v.x == c.tag;
  c.a.weights_home[token * c.a.weights_home_stride[0] + lane * c.a.weights_home_stride[1]] =
      come ? weight_in(v, lane) : 0.0F;
}

/// Sums this rank's tokens, from the `place`-th on every `warps`-th, over the ranks that are given. feed: or null.
template <typename Traits>
__device__ __forceinline__ void sum_tokens(const Combine& c, const Desk& desk, std::uint32_t given,
                                           PieceFeed* feed, int place, int warps, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  const int steps = static_cast<int>(a.taken_divisor.divisor);
  int lost = 0;
#pragma unroll 1
  for (int token = place; token < a.tokens; token += warps) {
    std::uint32_t ranks = 0;
    HomeToken home = read_token(c, token, lane, ranks);
    ranks &= given;
    const bool asked = ((ranks >> lane) & 1U) != 0;
    const uint4 answer =
        load_packet(in_at(g, asked ? lane : g.rank, g.layout.answer(c.bank, token)));
    if (!Traits::kSingle && feed != nullptr) {
      sum_by_ring<Traits>(c, *desk.arrivals, home, ranks, answer, token, steps, *feed, lane);
    }
#pragma unroll 1
    for (int step = 0; step < steps && (Traits::kSingle || feed == nullptr); ++step) {
      float sum[Traits::kSpan][kLaneElements] = {};
      home.answered = 0;
      const int element = step * Traits::kStep + lane * kLaneElements;
      if constexpr (Traits::kSingle) {
        add_chain<Traits>(c, home, ranks, answer, token, element, sum, lane);
      } else {
        const PartialSums sums(c, *desk.arrivals, home, ranks, answer, token, lane);
        add_ranks<Traits>(c, sums, element, sum);
      }
      finish_token<Traits>(c, home, token, step, sum, lane);
    }
    lost += __popc(home.expected & ~home.answered);
    if (a.weights_home != nullptr) bring_weights_home(c, home, ranks, token, lane);
  }
  if (lane == 0 && lost != 0) {
    atomicAdd(&desk.arrivals->lost_routes, static_cast<unsigned long long>(lost));
  }
}

/// Rows that were pulled of ranks that had given this one up may be anything: all is summed again without them. By a whole
/// block, after all others have done. Rare.
template <typename Traits>
__device__ __noinline__ void sum_again(const CombineArgs* args, const Desk* desk,
                                       const Block* block, std::uint32_t accused) {
  const CombineArgs& a = *args;
  const Geometry& g = a.geometry;
  const Call call(a, *desk);
  const Combine c = combine_of(a, call, *block, block->received);
  const std::uint32_t given = desk->arrivals->given & ~accused;
  if (threadIdx.x == 0) desk->arrivals->lost_routes = 0;
  __syncthreads();
  sum_tokens<Traits>(c, *desk, given, nullptr, static_cast<int>(threadIdx.x / 32), kBlockWarps,
                     static_cast<int>(threadIdx.x % 32));
  __syncthreads();
  if (threadIdx.x != 0) return;
  add_totals(&g, Kind::combine, {}, {accused, 0, 0});
  if (a.report != nullptr) a.report->missing.words[0] |= accused;
  atomicOr(&g.state->suspects, accused);
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads)
    sum_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  Recorder<true> recorder(g.recording);
  begin(g, Kind::combine, false, a.timeout_ns, block, seat);
  recorder.join(Kind::combine, block.received.epoch + 1);
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.received);
  const bool sums = call.usable && !a.drop;
  if (sums) {
    PieceFeed feed(ring, throughput_memory, seat.warp, lane);
    PieceFeed* const by_ring = desk.ring_bytes == Ring::kBytes ? &feed : nullptr;
    sum_tokens<Traits>(c, desk, desk.arrivals->given, by_ring, seat.place, seat.warps, lane);
  }
  recorder.mark(Phase::sum);
  if (is_last(&desk.done[Desk::kReceive])) {
    if (sums && !Traits::kSingle) {
      // Of whom nothing was pulled may accuse: what it pushed stays as it is.
      const bool pulled = lane < g.ranks && ((desk.arrivals->given >> lane) & 1U) != 0 &&
                          desk.arrivals->rows[lane] != nullptr;
      const std::uint32_t accused = lanes_with(pulled && lane != g.rank && is_accused(g, lane));
      if (accused != 0) sum_again<Traits>(&a, &desk, &block, accused);
      __syncthreads();
    }
    const unsigned long long lost = desk.arrivals->lost_routes;
    if (threadIdx.x == 0 && lost != 0) {
      add_totals(&g, Kind::combine, {static_cast<std::uint32_t>(lost), 0, 0}, {});
      if (a.report != nullptr) a.report->lost_routes = static_cast<std::int64_t>(lost);
    }
    if (seat.warp == kOpenWarp) {
      const std::uint64_t epoch = block.received.epoch + 1;
      tell(g, Kind::combine, epoch, block.suspects, lane);
      if (call.own.stride != 0) {
        await_readers(g, Kind::combine, epoch, suspects_by_now(g), a.timeout_ns, lane);
      }
    }
  }
  if (seat.warp == kCloseWarp) close(g, Kind::combine, Halves{false, true}, block, lane);
  recorder.mark(Phase::wait);
  recorder.finish(Role::worker);
}

using Kernel = void (*)(const CombineArgs, const Desk);
struct Kernels {
  Kernel push;
  Kernel sum;
};

/// Steps of kStepElements that a warp does at once: with 7, rows of 7168 elements are four pieces.
template <int kInput, int kCodec>
constexpr int kSpan = kInput == 2 && kCodec == 2 ? 7 : 3;
/// With `single`, rows are pushed one by one, in single steps.
template <int kInput, int kCodec, bool kSingle>
constexpr Kernels kernels{
    push_kernel<CombineTraits<kInput, kCodec, kSingle ? 1 : kSpan<kInput, kCodec>, kSingle, false,
                              true, true>>,
    sum_kernel<CombineTraits<kInput, kCodec, kSpan<kInput, kCodec>, kSingle, false, true, true>>};

int steps_of(const CombineArgs& a, int span) {
  return (a.geometry.hidden + span * kStepElements - 1) / (span * kStepElements);
}

Kernels kernels_for(const CombineArgs& a) {
  const bool wide = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return a.single ? (wide ? kernels<4, 4, true> : kernels<2, 4, true>)
                    : (wide ? kernels<4, 4, false> : kernels<2, 4, false>);
  }
  return a.single ? (wide ? kernels<4, 2, true> : kernels<2, 2, true>)
                  : (wide ? kernels<4, 2, false> : kernels<2, 2, false>);
}

}  // namespace

int launch_throughput_combine(const CombineArgs& args, const Desk& desk, const Launch& launch) {
  const Kernels kernels = kernels_for(args);
  CombineArgs a = args;
  const bool narrow = a.codec != DType::f32 && a.y_dtype != DType::f32;
  const int span = narrow ? kSpan<2, 2> : kSpan<4, 4>;
  a.steps_divisor = Divisor(steps_of(a, a.single ? 1 : span));
  a.taken_divisor = Divisor(steps_of(a, span));
  int error = 0;
  const auto run = [&](Kernel kernel, int blocks, int shared) {
    Launch own = launch;
    own.blocks = blocks;
    own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
    const int failed = launch_kernel(kernel, a, own, static_cast<std::size_t>(shared), desk);
    if (error == 0) error = failed;
  };
  if (args.halves.send) run(kernels.push, launch.blocks, desk.ring_bytes);
  if (args.halves.receive) {
    run(await_kernel, 1, 0);
    run(kernels.sum, launch.blocks, desk.ring_bytes);
  }
  return error;
}

int load_throughput_combine_kernels() {
  int error = load_kernel(await_kernel, 0);
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const bool single : {false, true}) {
        CombineArgs args;
        args.codec = codec;
        args.y_dtype = dtype;
        args.single = single;
        const Kernels kernels = kernels_for(args);
        for (const Kernel kernel : {kernels.push, kernels.sum}) {
          if (error == cudaSuccess) error = load_kernel(kernel, throughput_ring_bytes());
        }
      }
    }
  }
  return error;
}

}  // namespace sluice::engine::cuda
