// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_verdict.cuh"
#include "sluice/handle.hpp"

/// dispatch, receive half: the numbers of rows, which follow from the counts of all sources.
namespace sluice::engine::cuda {

/// Rows of a local expert that come from the sources below `sources`, if the polls are not weary afterwards. For any
/// number of lanes.
__device__ __forceinline__ int count_rows_from(const Receipt& r, int sources, int expert,
                                               Polls& polls) {
  constexpr int kAtOnce = 4;
  const std::byte* at = in_at(r.g, 0, r.g.layout.count(r.bank, expert));
  const std::size_t stride = r.g.layout.lane(1);
  const std::uint64_t none = r.tag | static_cast<std::uint64_t>(~r.signature) << 32;
  int total = 0;
#pragma unroll 1
  for (int source = 0; source < sources && !polls.was_weary();) {
    bool late = false;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      std::uint64_t word = none;
      // Pairs with send_counts() of the source.
      if (source + i < sources && !is_absent(r, source + i)) {
        word = load_relaxed(reinterpret_cast<const std::uint64_t*>(at + i * stride));
      }
      late = late || static_cast<std::uint32_t>(word) != r.tag;
      sum += count_in(static_cast<std::uint32_t>(word >> 32), r.signature);
    }
    if (late) {
      (void)polls.weary();
      continue;
    }
    total += sum;
    source += kAtOnce;
    at += kAtOnce * stride;
  }
  return total;
}

/// The same of all local experts at once, in the registers of one warp, so that nobody waits for counts
/// only once a record has come. For a few ranks with a few experts, of which a lane has two.
class Numbers {
 public:
  /// Nothing where they are not wanted.
  __device__ __forceinline__ Numbers(const Receipt& r, int source) {
    if (!r.numbers) return;
    sources_ = r.layout == Layout::expert_slab ? below(source) : r.g.ranks;
    late_ = (1U << sources_) - 1U;
  }
  /// Whether they are wanted, in kernels for few tokens.
  static bool wanted(const DispatchArgs& a) {
    const bool fit = a.geometry.ranks <= kSources && a.geometry.local_experts <= kExperts;
    // For a token or two in slabs, looking at all costs more than looking at what a record needs.
    return fit && (a.layout == Layout::expert_major ||
                   (a.layout == Layout::expert_slab && a.tokens > kFewest));
  }
  /// The sources whose rows come first.
  static __device__ __forceinline__ int below(int source) {
    return mutant(KernelMutant::own_rank_counted) ? source + 1 : source;
  }

  /// Looks for counts that have not come yet. By one warp.
  __device__ __forceinline__ void look(const Receipt& r, int lane) {
    if (late_ == 0) return;
    const int expert = 2 * lane;
    const std::byte* const at = in_at(r.g, 0, r.g.layout.count(r.bank, 0)) + expert * 8;
    const std::size_t stride = r.g.layout.lane(1);
    const std::uint32_t none = ~r.signature;
    uint4 words[kSources];
#pragma unroll
    for (int s = 0; s < kSources; ++s) {
      words[s] = make_uint4(r.tag, none, r.tag, none);
      const bool asks = s < sources_ && ((r.suspects >> s) & 1U) == 0;
      // Two counts. Pairs with send_counts() of the source.
      if (asks && expert < r.g.local_experts) words[s] = load_packet(at + s * stride);
    }
    std::uint32_t late = 0;
#pragma unroll
    for (int s = 0; s < kSources; ++s) {
      const bool second = expert + 1 < r.g.local_experts;
      if (words[s].x != r.tag || (second && words[s].z != r.tag)) late |= 1U << s;
      counts_[s] =
          static_cast<std::uint32_t>(count_in(words[s].y, r.signature) |
                                     (second ? count_in(words[s].w, r.signature) : 0) << 16);
    }
    late_ = __reduce_or_sync(~0U, late);
  }
  /// Whether all have come that are needed.
  __device__ __forceinline__ bool here() const {
    return late_ == 0;
  }

  /// Rows of a lane's expert that come from sources below `source`, once all counts are here.
  __device__ __forceinline__ int before(int source, int expert) const {
    std::uint32_t sums = 0;
#pragma unroll
    for (int s = 0; s < kSources; ++s) sums += s < below(source) ? counts_[s] : 0;
    return of_expert(static_cast<int>(sums & 0xFFFFU), static_cast<int>(sums >> 16), expert);
  }
  /// expert_major: where the segment of a lane's expert begins.
  __device__ __forceinline__ int begin(const DispatchArgs& a, int expert, int lane) const {
    std::uint32_t sums = 0;
#pragma unroll
    for (int s = 0; s < kSources; ++s) sums += counts_[s];
    int first = static_cast<int>(sums & 0xFFFFU);
    int second = static_cast<int>(sums >> 16);
    if (a.alignment != 1) {
      const auto alignment = static_cast<int>(a.alignment);
      first = (first + alignment - 1) / alignment * alignment;
      second = (second + alignment - 1) / alignment * alignment;
    }
    int end = first + second;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, end, step);
      if (lane >= step) end += other;
    }
    return of_expert(end - second - first, end - second, expert);
  }

 private:
  static constexpr int kSources = 4;
  static constexpr int kExperts = 64;
  static constexpr int kFewest = 2;

  static __device__ __forceinline__ int of_expert(int even, int odd, int expert) {
    even = __shfl_sync(~0U, even, expert / 2);
    odd = __shfl_sync(~0U, odd, expert / 2);
    return expert % 2 == 0 ? even : odd;
  }

  int sources_ = 0;  // Those below are asked for.
  std::uint32_t late_ = 0;
  std::uint32_t counts_[kSources] = {};  // of the lane's first expert, and of its second << 16
};

/// Lane k: the local expert of route k of a record, or -1.
__device__ __forceinline__ int local_expert(const Geometry& g, uint4 header, int lane) {
  return lane < g.top_k ? header_word::local_expert(header.z) : -1;
}

/// What the handle has for a route with a row, the `before`-th of its expert plus its header's position. begin:
/// expert_major: the expert's first row.
__device__ __forceinline__ int place_row(const Receipt& r, uint4 header, int local, int before,
                                         int begin) {
  const DispatchArgs& a = r.a;
  const std::uint32_t position = header_word::position(header.z);
  if (local < 0) return Handle::kRowAbsent;
  if (position == header_word::kNoPosition) return Handle::kRowDuplicate;
  const int among = before + static_cast<int>(position);
  if (r.layout == Layout::expert_slab) {
    const int spare = mutant(KernelMutant::capacity_off_by_one) ? 1 : 0;
    return among < a.capacity + spare ? local * static_cast<int>(a.capacity) + among
                                      : Handle::kRowOverflow;
  }
  const int row = begin + among;
  return a.capacity == 0 || row < a.capacity ? row : Handle::kRowOverflow;
}
/// The same in rank_major, of the `record`-th record.
__device__ __forceinline__ int place_record(const DispatchArgs& a, int local, int record) {
  if (local < 0) return Handle::kRowAbsent;
  return a.capacity == 0 || record < a.capacity ? record : Handle::kRowOverflow;
}

/// Lane k: the row of route k of the `record`-th record, which came from `source`, or what the handle
/// has for none. bases: where the segments of expert_major start, or null where nobody has numbered them.
static __device__ __noinline__ int row_slowly(Late late, int source, uint4 header, int record,
                                              const std::int32_t* bases) {
  const Receipt r = receipt_of(late);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int local = local_expert(r.g, header, lane);
  if (r.layout == Layout::rank_major) return place_record(r.a, local, record);
  int before = 0;
  int begin = 0;
  if (local >= 0) before = count_rows_slowly(late_of(r), Numbers::below(source), local);
  __syncwarp();
  if (r.layout == Layout::expert_major) {
    begin = bases != nullptr ? bases[max(local, 0)] : begin_slowly(late_of(r), max(local, 0));
  }
  return place_row(r, header, local, before, begin);
}

/// The same, of no meaning if the warp is weary afterwards. numbers: are here; bases: see needs_bases().
__device__ __forceinline__ int row_of_route(const Receipt& r, int source, uint4 header, int record,
                                            const std::int32_t* bases, const Numbers& numbers,
                                            Polls& polls, int lane) {
  const DispatchArgs& a = r.a;
  const int local = local_expert(r.g, header, lane);
  if (r.layout == Layout::rank_major) return place_record(a, local, record);
  const int expert = max(local, 0);
  int before = 0;
  int begin = 0;
  if (r.numbers) {
    before = numbers.before(source, expert);
    if (r.layout == Layout::expert_major) begin = numbers.begin(a, expert, lane);
  } else {
    before = count_rows_from(r, Numbers::below(source), expert, polls);
    __syncwarp();
    polls.agree();  // Lanes waited for different things.
    if (r.layout == Layout::expert_major) begin = bases[expert];
  }
  return place_row(r, header, local, before, begin);
}

}  // namespace sluice::engine::cuda
