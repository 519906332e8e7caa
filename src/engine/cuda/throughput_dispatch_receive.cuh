// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_mend.cuh"
#include "engine/cuda/throughput_number.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// dispatch in throughput mode, receive half: once the rows are numbered, warps take records one by one, in the order of
/// their tokens, and pull a record's row when its header has come and the row lies where it is pulled from. A source whose
/// records do not come in time is given up as a whole.
namespace sluice::engine::cuda {

/// Lane k: the row of route k of the `record`-th record, or what the handle has for none.
__device__ __forceinline__ int place_route(const Receipt& r, const Desk& desk, int source,
                                           int local, std::uint32_t place, int record) {
  const DispatchArgs& a = r.a;
  if (local < 0) return Handle::kRowAbsent;
  if (r.layout == Layout::rank_major) return place_record(a, local, record);
  if ((place & place_word::kDuplicate) != 0) return Handle::kRowDuplicate;
  const int row = desk.first_rows[source * r.g.local_experts + local] +
                  static_cast<int>(place & place_word::kPosition);
  if (r.layout == Layout::expert_slab) {
    return row < a.capacity ? local * static_cast<int>(a.capacity) + row : Handle::kRowOverflow;
  }
  return a.capacity == 0 || row < a.capacity ? row : Handle::kRowOverflow;
}

/// The lanes whose row is written. Of rank_major one, however many routes.
__device__ __forceinline__ std::uint32_t targets_of(const Receipt& r, int row) {
  const std::uint32_t targets = lanes_with(row >= 0);
  return r.layout == Layout::rank_major ? targets & (~targets + 1) : targets;
}

/// The first of a record's scales: asked for before its row, and looked at when that is on its way.
__device__ __forceinline__ uint4 first_scales(const DispatchArgs& a, const std::byte* from,
                                              int lane) {
  const int packets = static_cast<int>(a.units_divisor.divisor) * a.scale_packets;
  return lane < packets ? load_packet(from + lane * 16) : make_uint4(0, 0, 0, 0);
}
/// A record's scales to those of its rows.
__device__ __forceinline__ void pull_scales(const Receipt& r, const std::byte* from, uint4 packet,
                                            int row, int lane) {
  const DispatchArgs& a = r.a;
  const int packets = static_cast<int>(a.units_divisor.divisor) * a.scale_packets;
  std::byte* const own = row_at(a.scales, max(row, 0));
#pragma unroll 1
  for (int first = 0; first < packets; first += 32) {
    const int at = first + lane;
    if (first != 0 && at < packets) packet = load_packet(from + at * 16);
#pragma unroll 1
    for (std::uint32_t left = targets_of(r, row); left != 0; left &= left - 1) {
      std::byte* const out = pointer_of(own, __ffs(static_cast<int>(left)) - 1);
      if (at >= packets || mutant(KernelMutant::scales_not_stored)) continue;
      if (a.whole_scales) {
        store16(out + at * 16, packet);
      } else {
        store_scales(&a, out, at / a.scale_packets, at % a.scale_packets, packet);
      }
    }
  }
}

/// What has become known of a source.
struct Origin {
  int tokens = 0;
  int first = 0;  // record
  const std::byte* rows = nullptr;
  std::int64_t stride = 0;
};

/// What a warp does of the receive half: it has a record, and pulls it once that can be done.
template <typename Encoder, int kSpan>
class Puller {
 public:
  __device__ __forceinline__ Puller(const Receipt& r, const Desk& desk, RowCopier& copier,
                                    bool receives, int lane)
      : r_(r),
        desk_(desk),
        notes_(*desk.dispatch_notes),
        copier_(copier),
        lane_(lane),
        waits_(receives),
        queue_(&notes_.next[DispatchNotes::kRecords], lane) {}

  /// Takes a record, if there is none and one is known of, and asks what has come of it by now. Whether there is one.
  __device__ __forceinline__ bool look() {
    if (waits_ && is_numbered()) begin();
    if (takes_ && token_ < 0) claim();
    if (token_ >= 0) ask();
    return token_ >= 0;
  }
  /// Whether it waits no longer for somebody's records.
  __device__ __forceinline__ bool gave_up() const { return gone_ != 0; }
  /// Whether there is one, or may be.
  __device__ __forceinline__ bool has_more() const { return waits_ || takes_; }

  /// Whether all of it was there when it was asked for, or nothing of it will come.
  __device__ __forceinline__ bool is_ready() const {
    const bool told =
        r_.a.cached || header_.x == r_.tag || mutant(KernelMutant::stale_header_taken);
    const bool none = !r_.a.cached && told && (header_.z & place_word::kNone) != 0;
    return __any_sync(~0U, none && lane_ == 0) || __all_sync(~0U, told && staged_);
  }
  /// Waits for it, or for the numbers: those come of a block that runs, and that waits for no block of this launch but those
  /// with shares, which run.
  __device__ __forceinline__ void await() {
    if (waits_) {
      while (!is_numbered()) {
      }
      return;
    }
    std::uint64_t began = 0;
    Patience patience(r_.g, r_.a.timeout_ns, began);
    WaitClock wait;
    bool gave_up = false;
    for (ask(); !is_ready() && !gave_up; ask()) {
      wait.poll();
      if (patience.weary()) gave_up = __any_sync(~0U, lane_ == 0 && patience.look(source_));
    }
    const std::uint64_t waited = wait.ns();
    if (lane_ == 0 && waited != 0) {
      atomicMax(&notes_.waited_ns[source_], static_cast<unsigned long long>(waited));
    }
    __syncwarp();
    if (!gave_up) return;
    if (lane_ == 0) atomicOr(&notes_.missing, 1U << source_);
    gone_ |= 1U << source_;
    token_ = -1;
  }

  /// Pulls it.
  __device__ __forceinline__ void pull() {
    __syncwarp();  // What came before the word is seen by this warp.
    // As many of its rows as are known to be there need neither an answer nor a fence.
    if (token_ >= __shfl_sync(~0U, staged_to_, source_)) {
      if (((staged_rows_ >> source_) & 1U) != 0) order_copies();
      if (lane_ == source_) staged_to_ = max(staged_to_, seen_to_);
    }
    const int token = token_;
    token_ = -1;
    if (r_.a.cached) {
      const bool lost = ((desk_.arrivals->given >> source_) & 1U) == 0;
      pull_row(token, row_, lost);
      if (lane_ == 0 && !lost && source_ != r_.g.rank) {
        count_bytes(r_.g, protocol::Kind::dispatch, std::int64_t{r_.a.record_packets} * 16);
      }
      return;
    }
    if (__any_sync(~0U, lane_ == 0 && (header_.z & place_word::kNone) != 0)) return;
    const int record = __shfl_sync(~0U, own_.first, source_) +
                       static_cast<int>(header_.w >> place_word::kExpertBits);
    const bool here = lane_ < r_.g.top_k && (header_.z & place_word::kHere) != 0;
    const int local =
        here ? static_cast<int>(header_.w & ((1U << place_word::kExpertBits) - 1U)) : -1;
    const int row = place_route(r_, desk_, source_, local, header_.z, record);
    write_record(r_, record, source_, token, local, __uint_as_float(header_.y), row, lane_);
    if (r_.a.rows) pull_row(token, row, false);
  }

 private:
  /// Asks what has come by now of the record.
  __device__ __forceinline__ void ask() {
    const Geometry& g = r_.g;
    // Pairs with send_slice() of the source.
    if (!r_.a.cached) {
      header_ = load_packet(
          in_at(g, source_, g.layout.route(r_.bank, token_, lane_ < g.top_k ? lane_ : 0)));
    }
    staged_ = true;
    seen_to_ = 0;
    if (token_ < __shfl_sync(~0U, staged_to_, source_)) return;
    // Pairs with Stager::tell() of the source or, of one on another node, with the ferry's carry_row(), which tells of no parts.
    const bool asks = lane_ <= window::kStagedParts;
    const std::uint32_t at = lane_ < window::kStagedParts ? g.layout.staged_part(r_.bank, lane_)
                                                          : g.layout.staged_word(r_.bank, token_);
    const std::uint32_t come = lanes_with(
        asks &&
        load_acquire(reinterpret_cast<const std::uint32_t*>(in_at(g, source_, at))) == r_.tag);
    staged_ = (come >> window::kStagedParts) != 0;
    const window::StagedParts parts(__shfl_sync(~0U, own_.tokens, source_));
    constexpr std::uint32_t kParts = (1U << window::kStagedParts) - 1;
    seen_to_ = parts.first(__ffs(static_cast<int>(~(come & kParts))) - 1);
  }
  /// By a vote: the lanes look one after the other. Pairs with number_rows_for_all().
  __device__ __forceinline__ bool is_numbered() const {
    return __all_sync(~0U, load_acquire_device(&notes_.numbered) != 0);
  }
  /// The rows are numbered.
  __device__ __forceinline__ void begin() {
    const DispatchArgs& a = r_.a;
    const Geometry& g = r_.g;
    const Arrivals& arrivals = *desk_.arrivals;
    order_copies();
    waits_ = false;
    staging_ = arrivals.staging;
    staged_rows_ = arrivals.staged_rows;
    staged_to_ = ((staging_ >> lane_) & 1U) != 0 ? 0 : kMaxTokens;
    if (lane_ < g.ranks) {
      own_ = {arrivals.tokens[lane_], arrivals.records[lane_], arrivals.rows[lane_],
              arrivals.stride[lane_]};
    }
    int items = __reduce_max_sync(~0U, own_.tokens) * g.ranks;
    if (a.cached) items = a.rows ? static_cast<int>(r_.handle.source_offsets()[g.ranks]) : 0;
    queue_.ask_ahead();
    queue_.open(items);
    takes_ = true;
  }

  /// Takes the next record.
  __device__ __forceinline__ void claim() {
    const Geometry& g = r_.g;
#pragma unroll 1
    for (;;) {
      const int item = queue_.take();
      takes_ = item >= 0;
      if (!takes_) return;
      if (r_.a.cached) {
        source_ = r_.handle.record_rank()[item];
        if (source_ < 0 || ((gone_ >> source_) & 1U) != 0) continue;
        token_ = r_.handle.record_token()[item];
        row_ =
            lane_ < g.top_k ? r_.handle.route_rows()[item * g.top_k + lane_] : Handle::kRowAbsent;
        return;
      }
      const int token = quotient(item, g.ranks_divisor);
      // The ranks do not all pull from the same one.
      source_ = g.rank + 1 + item - token * g.ranks;
      if (source_ >= g.ranks) source_ -= g.ranks;
      if (token >= __shfl_sync(~0U, own_.tokens, source_) || ((gone_ >> source_) & 1U) != 0) {
        continue;
      }
      token_ = token;
      return;
    }
  }

  /// A source's row to its row, or rows. lost: zeros instead.
  __device__ __forceinline__ void pull_row(int token, int row, bool lost) {
    const DispatchArgs& a = r_.a;
    const int source = source_;
    const std::uint32_t targets = targets_of(r_, row);
    if (targets == 0) return;
    std::byte* const from = pointer_of(const_cast<std::byte*>(own_.rows), source) +
                            token * __shfl_sync(~0U, static_cast<long long>(own_.stride), source);
    // Behind their row, but those that are staged while it is not.
    const bool apart = (((staging_ & ~staged_rows_) >> source) & 1U) != 0;
    std::byte* const scales =
        (apart ? desk_.stages[source] + r_.g.layout.staged_offset(r_.bank, token) : from) +
        a.row_bytes;
    if (!lost && a.aligned && desk_.ring_bytes != 0) {
      const bool takes = ((targets >> lane_) & 1U) != 0;
      uint4 packet;
      if constexpr (Encoder::kOutput == 1) packet = first_scales(a, scales, lane_);
      copier_.copy(from, a.row_bytes, takes ? row_at(a.out, row) : nullptr);
      if constexpr (Encoder::kOutput == 1) pull_scales(r_, scales, packet, row, lane_);
      return;
    }
    const int units = static_cast<int>(a.units_divisor.divisor);
#pragma unroll 1
    for (int unit = 0; unit < units; unit += kSpan) {
      Piece<Encoder, kSpan> piece(a, from, scales, unit, lane_);
      if (lost) {
        piece.zero();
      } else {
        piece.load(a);
      }
      piece.store(r_, row, lane_);
    }
  }

  const Receipt& r_;
  const Desk& desk_;
  DispatchNotes& notes_;
  RowCopier& copier_;
  int lane_;
  bool waits_;                     // For the numbers.
  Origin own_;                     // Lane r: rank r.
  std::uint32_t staging_ = 0;      // Ranks that say of every row that it is there.
  std::uint32_t staged_rows_ = 0;  // Of these, those whose rows, not scales alone, are staged.
  std::uint32_t gone_ = 0;         // Ranks that are not waited for any more.
  Queue queue_;
  bool takes_ = false;  // There may be more records to take.
  int source_ = 0;
  int token_ = -1;
  int row_ = 0;  // Of this lane's route, in a cached dispatch.
  uint4 header_{};
  bool staged_ = false;
  int seen_to_ = 0;    // As many of the source's rows were there when it was asked.
  int staged_to_ = 0;  // Lane r: as many rows of rank r are known to be there.
};

/// The rows of `source`, by its counts: of records that were not described, too. By a whole block.
__device__ __forceinline__ void zero_source(const Receipt& r, const Desk& desk, int source) {
  const DispatchArgs& a = r.a;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const auto first = static_cast<int>(r.handle.source_offsets()[source]);
  const auto end = static_cast<int>(r.handle.source_offsets()[source + 1]);
  if (a.cached) {
#pragma unroll 1
    for (int record = first + warp; record < end; record += kBlockWarps) {
      if (r.handle.record_rank()[record] >= 0) zero_record(a, r.handle, record, lane);
    }
    return;
  }
  if (r.layout == Layout::rank_major) {
    const std::int64_t limit = a.capacity > 0 && end > a.capacity ? a.capacity : end;
    return zero_span(a, {first + warp, limit}, kBlockWarps, lane);
  }
#pragma unroll 1
  for (int expert = 0; expert < r.g.local_experts; ++expert) {
    const std::uint64_t word = load_relaxed(reinterpret_cast<const std::uint64_t*>(
        in_at(r.g, source, r.g.layout.count(r.bank, expert))));
    const auto count = static_cast<std::int64_t>(word >> 32);
    std::int64_t begin = desk.first_rows[source * r.g.local_experts + expert];
    std::int64_t limit = a.capacity > 0 ? a.capacity : a.stored_rows;
    if (r.layout == Layout::expert_slab) {
      limit = (expert + 1) * a.capacity;
      begin += expert * a.capacity;
    }
    zero_span(a, {begin + warp, min(begin + count, limit)}, kBlockWarps, lane);
  }
}

/// What was pulled of a source that has given this rank up may be anything, and of one that was given up not all came: its
/// rows keep their numbers, are zeroed, and have no source. By a whole block, after all rows have been pulled. Rare.
static __device__ __noinline__ void mend_pulled(Late late, const Desk* desk, int source) {
  Receipt r = receipt_of(late);
  r.bank = static_cast<int>(late.note->block.received.bank);
  const DispatchArgs& a = r.a;
  if (a.rows) zero_source(r, *desk, source);
  __syncthreads();
  const auto first = static_cast<int>(r.handle.source_offsets()[source]);
  const auto end = static_cast<int>(r.handle.source_offsets()[source + 1]);
#pragma unroll 1
  for (int record = first + static_cast<int>(threadIdx.x / 32); record < end && !a.cached;
       record += kBlockWarps) {
    mend_records(r.handle, r.g.top_k, record, 1, static_cast<int>(threadIdx.x % 32));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  mend_report(late, source, false);
  if (source != r.g.rank) suspect(r.g, 1U << source);
}

/// Mends what did not come, or was not read in time. By the last block. Rare.
__device__ __forceinline__ void mend_received(const Receipt& r, const Desk& desk, Note& note,
                                              const Seat& seat) {
  const Geometry& g = r.g;
  __shared__ std::uint32_t lost;
  if (seat.warp == 0) {
    const bool given = ((desk.arrivals->given >> seat.lane) & 1U) != 0;
    const bool missing = ((desk.dispatch_notes->missing >> seat.lane) & 1U) != 0;
    const bool accused = given && seat.lane != g.rank && is_accused(g, seat.lane);
    lost = lanes_with(given && (missing || accused));
    note.signature = r.signature;  // For mend_pulled().
  }
  __syncthreads();
#pragma unroll 1
  for (std::uint32_t left = lost; left != 0; left &= left - 1) {
    mend_pulled({&r.a, &note}, &desk, __ffs(static_cast<int>(left)) - 1);
    __syncthreads();
  }
}

}  // namespace sluice::engine::cuda
