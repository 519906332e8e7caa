// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_receive.cuh"
#include "engine/cuda/throughput_combine_send.cuh"

/// combine in throughput mode, receive half: the peers' cells are awaited; then every token is summed.
namespace sluice::engine::cuda {

/// Awaits the cells of all ranks, and decides who takes part. One block.
static __global__ void __launch_bounds__(kBlockThreads, 1)
    await_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::combine, kReceiveHalf, a.timeout_ns, block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  if (seat.warp != 0) return;
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.received);
  const Arrival arrival = await_arrivals(g, protocol::CellKind::combine, c.bank, c.tag, c.signature,
                                         block, a.timeout_ns, lane);
  if (lane < g.ranks) {
    const bool pulled = arrival.rows.stride != 0;
    desk.arrivals->rows[lane] = pulled ? desk.heaps[lane] + arrival.rows.offset : nullptr;
    desk.arrivals->stride[lane] = arrival.rows.stride;
  }
  part.recorder.mark(Phase::wait);
  part.recorder.finish(Role::worker);
  const std::uint32_t missing = lanes_with(arrival.missing);
  const std::uint32_t refused = lanes_with(arrival.refused);
  const std::uint32_t mismatched = call.usable ? lanes_with(arrival.mismatched) : 0;
  if (lane != 0) return;
  const bool drop = !call.usable || a.drop;
  desk.arrivals->given = drop ? 0 : ((1U << g.ranks) - 1U) & ~(missing | refused | mismatched);
  desk.arrivals->lost_routes = 0;
  if ((missing | refused | mismatched) != 0) {
    add_totals(&g, protocol::Kind::combine, {}, {missing, refused, mismatched});
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

/// Sums a token: the partial sums of its ranks, ascending, piece by piece.
template <typename Traits>
__device__ __forceinline__ void sum_ranks(const Combine& c, const HomeToken& home,
                                          const PartialSums& sums, int token, int steps, int lane) {
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[Traits::kSpan][kLaneElements] = {};
    const int element = step * Traits::kStep + lane * kLaneElements;
    const int byte = within(element, c.g.hidden) * Traits::Output::kElementBytes;
#pragma unroll 1
    for (std::uint32_t left = sums.ranks; left != 0; left &= left - 1) {
      const std::byte* const from =
          pointer_of(const_cast<std::byte*>(sums.own), __ffs(static_cast<int>(left)) - 1);
      typename Traits::Output packets;
      packets.take(from + byte, element, c.g.hidden);
      add_packets<Traits>(c, packets, sum);
    }
    finish_token<Traits>(c, home, token, step, sum, lane);
  }
}

/// The same by way of shared memory.
template <typename Traits>
__device__ __forceinline__ void sum_by_ring(const Combine& c, const HomeToken& home,
                                            const PartialSums& sums, int token, int steps,
                                            PieceFeed& feed, int lane) {
  constexpr int kBytes = Traits::Output::kElementBytes;
  static_assert(Traits::kStep * kBytes <= Ring::kSlotBytes);
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
    if constexpr (Traits::kSingle) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        float sum[Traits::kSpan][kLaneElements] = {};
        home.answered = 0;
        const int element = step * Traits::kStep + lane * kLaneElements;
        add_chain<Traits>(c, home, ranks, answer, token, element, sum, lane);
        finish_token<Traits>(c, home, token, step, sum, lane);
      }
    } else {
      const PartialSums sums(c, *desk.arrivals, home, ranks, answer, token, lane);
      if (feed != nullptr) {
        sum_by_ring<Traits>(c, home, sums, token, steps, *feed, lane);
      } else {
        sum_ranks<Traits>(c, home, sums, token, steps, lane);
      }
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
  add_totals(&g, protocol::Kind::combine, {}, {accused, 0, 0});
  if (a.report != nullptr) a.report->missing.words[0] |= accused;
  atomicOr(&g.state->suspects, accused);
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 1)
    sum_kernel(const __grid_constant__ CombineArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::combine, kReceiveHalf, a.timeout_ns, block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Call call(a, desk);
  const Combine c = combine_of(a, call, block, block.received);
  const bool sums = call.usable && !a.drop;
  if (sums) {
    PieceFeed feed(ring, throughput_memory, seat.warp, lane);
    PieceFeed* const by_ring = desk.ring_bytes == Ring::kBytes ? &feed : nullptr;
    sum_tokens<Traits>(c, desk, desk.arrivals->given, by_ring, seat.place, seat.warps, lane);
  }
  part.recorder.mark(Phase::sum);
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
      add_totals(&g, protocol::Kind::combine, {static_cast<std::uint32_t>(lost), 0, 0}, {});
      if (a.report != nullptr) a.report->lost_routes = static_cast<std::int64_t>(lost);
    }
    if (seat.warp == kOpenWarp) {
      const std::uint64_t epoch = block.received.epoch + 1;
      tell(g, protocol::Kind::combine, epoch, block.suspects, lane);
      if (call.own.stride != 0) {
        await_readers(g, protocol::Kind::combine, epoch, suspects_by_now(g), a.timeout_ns, lane);
      }
    }
  }
  part.close_half();
}

}  // namespace sluice::engine::cuda
