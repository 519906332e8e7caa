// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_keep.cuh"
#include "engine/cuda/throughput_ring.cuh"
#include "engine/cuda/throughput_routes.cuh"

/// dispatch in throughput mode, send half: routes are counted, and the peers are told how many come; then come the records'
/// headers.
namespace sluice::engine::cuda {

/// How this rank takes part: a cached dispatch may turn out not to go along its handle.
struct Terms {
  bool refused;
  std::uint32_t signature;
  __device__ __forceinline__ explicit Terms(const DispatchArgs& a)
      : refused(a.refused), signature(a.signature) {
    if (!a.cached || refused) return;
    refused = !goes_along(&a);
    signature = mix(signature,
                    read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle)).dispatch);
  }
};

/// Whether rows of this call, or their scales, are staged. given: they come encoded.
__device__ __forceinline__ bool stages(const DispatchArgs& a, const Desk& desk, bool given) {
  return a.rows && (desk.own.stride == 0 || (given && !desk.own.scales));
}
/// Tells the peers how many records come, `word` of rank `lane`, and of what. By one warp.
__device__ __forceinline__ void tell_records(const DispatchArgs& a, const Desk& desk,
                                             const Block& block, const Terms& terms,
                                             std::uint32_t word, int lane) {
  const bool given = a.codec.kind == CodecKind::fp8 && a.x_dtype == DType::e4m3;
  std::uint32_t tokens = terms.refused ? 0U : static_cast<std::uint32_t>(a.tokens);
  if (stages(a, desk, given)) tokens |= throughput_word::kStaging;
  // Whom some block has left out gets nothing.
  const auto form = a.rows && !terms.refused ? static_cast<std::uint32_t>(a.record_packets) : 0U;
  publish(a.geometry, protocol::CellKind::dispatch, static_cast<int>(block.sent.bank),
          window::tag_of(block.sent.epoch + 1), word, terms.signature, tokens, desk.own, form,
          block.suspects | suspects_by_now(a.geometry), lane);
}

/// Whether the tokens of a call are routed anew: not along a handle, nor refused.
__device__ __forceinline__ bool is_fresh(const DispatchArgs& a, const Terms& terms) {
  return !a.cached && !terms.refused;
}

/// The parts of the tokens that blocks take one by one, in their order: who has one waits only for those before it, which
/// were taken by blocks that run. The last one taken is no part, but a duty: to tell the peers.
struct Shares {
  int count;
  int tokens;
  int each;
  __device__ __forceinline__ Shares(const Geometry& g, int tokens_of_call)
      : count(max(worker_blocks(g) - 1, 1)),
        tokens(tokens_of_call),
        each((tokens + count - 1) / count) {}
  __device__ __forceinline__ int first(int share) const { return min(share * each, tokens); }
  /// The duty, too.
  __device__ __forceinline__ int parts() const { return count + 1; }
};

/// What this rank's tokens are numbered with. By whole blocks, one of which tells the peers.
class Routing {
 public:
  __device__ __forceinline__ Routing(const DispatchArgs& a, const Desk& desk, const Block& block,
                                     const Terms& terms)
      : a_(a),
        g_(a.geometry),
        desk_(desk),
        block_(block),
        terms_(terms),
        tag_(window::tag_of(block.sent.epoch + 1)),
        bank_(static_cast<int>(block.sent.bank)),
        shares_(a.geometry, a.tokens),
        slice_(throughput_memory, g_, shares_.each) {}

  /// Counts shares and sends their headers, while there are any. next: the first that this block has taken, known to its first
  /// thread; sent: called by that one for each of Shares::parts(). Whether this block told the peers.
  template <typename Sent>
  __device__ __forceinline__ bool send(DispatchNotes& notes, unsigned next, const Sent& sent) {
    __shared__ unsigned taken;
    bool told = false;
#pragma unroll 1
    for (;;) {
      if (threadIdx.x == 0) taken = next;
      __syncthreads();
      const int share = static_cast<int>(min(taken, static_cast<unsigned>(shares_.count) + 1U));
      if (share > shares_.count) break;
      if (share < shares_.count) {
        count(share);
      } else {
        tell_peers();
        told = true;
      }
      // Not before: blocks that start at the same time get one each.
      if (threadIdx.x == 0) next = atomicAdd(&notes.next[DispatchNotes::kShares], 1U);
      if (share < shares_.count) send_headers(share);
      __syncthreads();
      if (threadIdx.x == 0) sent();
    }
    return told;
  }

 private:
  /// Notes part of a share, from `first` on. Keeps the routes as they will be used.
  __device__ __forceinline__ void note(int first, int end, bool& bad) {
    const int tokens = min(slice_.tokens(), end - first);
    const HandleArrays handle{a_.handle, &a_.handle_layout};
    const bool whole = a_.halves.receive && a_.handle != nullptr;
    const auto load = [&](int token, int k) {
      return GivenRoute{load_route<false>(a_, first + token, k),
                        route_weight(a_, first + token, k)};
    };
    const auto keep = [&](int token, int k, const GivenRoute& route) {
      const int at = (first + token) * g_.top_k + k;
      if (route.id == kBadRoute) {
        atomicAdd(desk_.bad_routes, 1U);
        bad = true;
      }
      const int id = max(route.id, kNoRoute);
      desk_.ids[at] = id;
      desk_.weights[at] = route.weight;
      if (whole) {
        handle.topk_ids()[at] = id;
        handle.topk_weights()[at] = route.weight;
      }
      return route.id;
    };
    note_slice(g_, slice_, tokens, load, keep);
  }

  /// Counts a share, for the blocks that have later ones. Leaves its only slice noted.
  __device__ __forceinline__ void count(int share) {
    bool bad = false;
    const int end = shares_.first(share + 1);
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice_.rows; row += kBlockThreads) {
      slice_.before[row] = 0;
    }
#pragma unroll 1
    for (int first = shares_.first(share); first < end; first += slice_.tokens()) {
      note(first, end, bad);
      pass_slice(slice_);
    }
    // Whoever reads how many routes are bad has awaited the counts.
    if (__syncthreads_or(static_cast<int>(bad)) != 0) fence_system();
    std::uint64_t* const counts = desk_.counts + std::int64_t{share} * slice_.rows;
    // Pairs with counted_before(). The word says all.
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice_.rows; row += kBlockThreads) {
      store_relaxed(counts + row, tag_ | static_cast<std::uint64_t>(slice_.before[row]) << 32);
    }
  }

  /// Tokens of the shares before `share` that are in a row: go to an expert or, behind those, to a rank. Waits for blocks that
  /// run, and wait for nobody meanwhile but for blocks with earlier shares: no deadline.
  __device__ __forceinline__ int counted_before(int share, int row) const {
    constexpr int kAtOnce = 12;
    int count = 0;
#pragma unroll 1
    for (int first = 0; first < share; first += kAtOnce) {
      const std::uint64_t* const at = desk_.counts + std::int64_t{first} * slice_.rows + row;
      std::uint64_t words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        words[i] = tag_;
        if (first + i < share) words[i] = load_relaxed(at + std::int64_t{i} * slice_.rows);
      }
      // Those that lack are asked for together: one after the other would take as many ways to memory.
      bool lacks = true;
#pragma unroll 1
      while (lacks) {
        lacks = false;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (static_cast<std::uint32_t>(words[i]) == tag_) continue;
          words[i] = load_relaxed(at + std::int64_t{i} * slice_.rows);
          lacks = true;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) count += static_cast<int>(words[i] >> 32);
    }
    if (mutant(KernelMutant::blocks_before_forgotten) && share < shares_.count &&
        row < g_.experts) {
      return 0;
    }
    return count;
  }

  __device__ __forceinline__ void send_headers(int share) {
    const int begin = shares_.first(share);
    const int end = shares_.first(share + 1);
    if (begin == end) return;
    __syncthreads();
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice_.rows; row += kBlockThreads) {
      slice_.before[row] = counted_before(share, row);
    }
    __syncthreads();
    if (end - begin <= slice_.tokens()) {
      return send_slice(a_, desk_, slice_, begin, end - begin, tag_, bank_, block_.suspects);
    }
#pragma unroll 1
    for (int first = begin; first < end; first += slice_.tokens()) {
      const int tokens = min(slice_.tokens(), end - first);
      note_slice(
          g_, slice_, tokens,
          [&](int token, int k) {
            return GivenRoute{desk_.ids[(first + token) * g_.top_k + k], 0.0F};
          },
          [](int /*token*/, int /*k*/, const GivenRoute& route) { return route.id; });
      send_slice(a_, desk_, slice_, first, tokens, tag_, bank_, block_.suspects);
      pass_slice(slice_);
    }
  }

  /// How many tokens go to each expert and, in the cells, how many records to each rank: all that rows are numbered by.
  __device__ __forceinline__ void tell_peers() {
    __shared__ std::uint32_t records[kPeersMax];
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice_.rows; row += kBlockThreads) {
      const int count = counted_before(shares_.count, row);
      if (row >= g_.experts) {
        records[row - g_.experts] = static_cast<std::uint32_t>(count);
        continue;
      }
      const Owner owner = owner_of(g_, row);
      if ((((block_.suspects | suspects_by_now(g_)) >> owner.rank) & 1U) != 0) continue;
      store_relaxed(reinterpret_cast<std::uint64_t*>(
                        out_at(g_, owner.rank, g_.layout.count(bank_, owner.local))),
                    tag_ | static_cast<std::uint64_t>(count) << 32);
    }
    __syncthreads();
    if (threadIdx.x / 32 != 0) return;
    const std::uint32_t word = lane < g_.ranks ? records[lane] : 0;
    if (lane < g_.ranks && lane != g_.rank) {
      count_bytes(g_, protocol::Kind::dispatch, std::int64_t{word} * g_.top_k * 16 + 16);
    }
    tell_records(a_, desk_, block_, terms_, word, lane);
  }

  const DispatchArgs& a_;
  const Geometry& g_;
  const Desk& desk_;
  const Block& block_;
  const Terms& terms_;
  std::uint32_t tag_;
  int bank_;
  Shares shares_;
  Slice slice_;
};

}  // namespace sluice::engine::cuda
