// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/counters.cuh"
#include "engine/cuda/dispatch_receive.cuh"

/// dispatch, what keepers write of records: the handle's entries of each, after the cells have said which come.
namespace sluice::engine::cuda {

/// What the peers' cells say, in a keeper's shared memory.
struct Coming {
  std::uint32_t tokens[kPeersMax * kTokenWords];  // bit t of [R]: the record of token t comes
  int records[kPeersMax];
  std::uint32_t missing;
  std::uint32_t refused;
  std::uint32_t mismatched;
  int most;  // tokens of one source
};

/// Awaits the cells of all sources, by a whole block; kSlowly: one that is behind. `coming` is all zero. counts: the waits,
/// too. Returns whether this warp has read what it should.
template <bool kSlowly>
__device__ __forceinline__ bool read_cells(const Receipt& r, Coming& coming, bool counts, int warp,
                                           int lane) {
  const Geometry& g = r.g;
#pragma unroll 1
  for (int source = warp; source < g.ranks; source += kBlockWarps) {
    const bool asks = lane < window::cell_packets(g.layout.shape().tokens);
    const std::byte* const at =
        in_at(g, source, g.layout.cell(protocol::CellKind::dispatch, r.bank)) +
        (asks ? lane : 0) * window::kPacketBytes;
    const bool missing = is_absent(r, source);
    uint4 packet = load_packet(at);  // Pairs with send_cell() of the source.
    if constexpr (kSlowly) {
      if (!missing) {
        const std::uint64_t begin = now_ns();
        packet = await_cell(r, source, asks ? lane : 0);
        __syncwarp();
        if (lane == 0 && counts) count_wait(g, source, now_ns() - begin);
      }
    } else {
      Polls polls(is_weary(r));
      WaitClock wait;
#pragma unroll 1
      while (!missing && !polls.was_weary() && !__all_sync(~0U, packet.x == r.tag) &&
             !mutant(KernelMutant::any_cell_taken)) {
        (void)polls.weary();
        wait.poll();
        packet = load_packet(at);
      }
      if (lane == 0 && counts) count_wait(g, source, wait.ns());
      if (!missing && polls.was_weary()) return false;
    }
    PeerCell cell;
    cell.missing = missing;
    cell.read(make_uint4(0, __shfl_sync(~0U, packet.y, 0), __shfl_sync(~0U, packet.z, 0), 0),
              r.signature);
    const int records = cell.records();
    std::uint32_t* const tokens = coming.tokens + source * kTokenWords;
    if (records != 0 && lane == 0) {
      tokens[0] = packet.w;
      coming.records[source] = records;
      atomicMax(&coming.most,
                static_cast<int>(cell.word >> cell_word::kTokensShift & cell_word::kNumber));
    }
    if (records != 0 && asks && lane > window::kFormPacket) {
      std::uint32_t* const three = tokens + 1 + 3 * (lane - window::kFormPacket - 1);
      three[0] = packet.y;
      three[1] = packet.z;
      three[2] = packet.w;
    }
    if (lane == 0) {
      const std::uint32_t bit = 1U << source;
      if (missing) atomicOr(&coming.missing, bit);
      if (!missing && cell.refused) atomicOr(&coming.refused, bit);
      if (!missing && cell.mismatched) atomicOr(&coming.mismatched, bit);
    }
  }
  return true;
}

/// Where a source's packet about this lane's route of a token lies.
__device__ __forceinline__ const std::byte* header_of(const Receipt& r, int source, int token,
                                                      int lane) {
  const Geometry& g = r.g;
  return in_at(g, source, g.layout.route(r.bank, token, lane < g.top_k ? lane : 0));
}

/// The header that warp `index` needs first in describe_records(), if it has come already.
__device__ __forceinline__ uint4 header_ahead(const Receipt& r, int index, int lane) {
  const int token = quotient(index, r.g.ranks_divisor);
  if (token >= r.g.layout.shape().tokens) return make_uint4(~r.tag, 0, 0, 0);
  return load_packet(header_of(r, index - token * r.g.ranks, token, lane));
}

/// Writes the handle's entries of one record. Lane k: of route k.
__device__ __forceinline__ void write_record(const Receipt& r, int record, int source, int token,
                                             int local, float weight, int row, int lane) {
  const Geometry& g = r.g;
  if (lane < g.top_k) {
    const int at = record * g.top_k + lane;
    r.handle.local_ids()[at] = local;
    r.handle.local_weights()[at] = weight;
    r.handle.route_rows()[at] = row;
  }
  if (lane == 0) {
    r.handle.record_rank()[record] = source;
    r.handle.record_token()[record] = token;
  }
}
/// The same of one whose header has come.
__device__ __forceinline__ void write_record(const Receipt& r, int record, int source, int token,
                                             uint4 header, int row, int lane) {
  write_record(r, record, source, token, local_expert(r.g, header, lane), __uint_as_float(header.y),
               row, lane);
}

/// Writes the handle's entries of the record of `token` of `source`, if there is one, by a warp that is weary; of a source
/// that is given up, others do. bases: or null.
static __device__ __noinline__ void describe_slowly(Late late, int source, int token,
                                                    const std::int32_t* bases) {
  const Receipt r = receipt_of(late);
  const int lane = static_cast<int>(threadIdx.x % 32);
  note_weary(r);
  if (is_absent(r, source)) return;
  PeerCell cell;
  const uint4 first = await_cell(r, source, 0);
  cell.read(first, r.signature);
  const TokenBit comes(token);
  const bool exists = comes.in(comes.first ? first : await_cell(r, source, comes.packet));
  if (!__all_sync(~0U, exists && cell.records() != 0)) return;
  const std::byte* const header_at = header_of(r, source, token, lane);
  unsigned polls = 0;
  uint4 header;
#pragma unroll 1
  for (;; wait_slowly(r, source, polls)) {
    header = load_packet(header_at);  // Pairs with send_route() of the source.
    if (__any_sync(~0U, is_closing(r, source))) return;
    if (__all_sync(~0U, header.x == r.tag)) break;
  }
  const int record = record_index_slowly(late_of(r), source, token);
  const int row = row_slowly(late_of(r), source, header, record, bases);
  if (__any_sync(~0U, is_closing(r, source))) return;
  write_record(r, record, source, token, header, row, lane);
}

/// What is left of the records of all sources to a warp that is weary: those from `first` on, every so many.
static __device__ __noinline__ void describe_left(Late late, const std::int32_t* bases, int first,
                                                  int warps) {
  const Receipt r = receipt_of(late);
#pragma unroll 1
  for (int item = first;; item += warps) {
    const int token = quotient(item, r.g.ranks_divisor);
    if (token >= r.g.layout.shape().tokens) break;
    describe_slowly(late, item - token * r.g.ranks, token, bases);
  }
}

/// The first records of every source, without waiting for the block: a cell's first packet says which
/// come. By the keepers that describe: warp `index` of `warps`. Returns the first item that is left: at once if the warp is
/// weary.
__device__ __forceinline__ int describe_early(const Receipt& r, int index, int warps, Polls& polls,
                                              int lane) {
  const Geometry& g = r.g;
  int limit = min(window::kFirstTokens, g.layout.shape().tokens);  // tokens
  int item = index;
#pragma unroll 1
  for (;; item += warps) {
    const int token = quotient(item, g.ranks_divisor);
    if (token >= limit) break;
    const int source = item - token * g.ranks;
    const std::byte* const header_at = header_of(r, source, token, lane);
    // Lane s: of rank s.
    const int peer = min(lane, g.ranks - 1);
    const std::byte* const cell_at =
        in_at(g, peer, g.layout.cell(protocol::CellKind::dispatch, r.bank));
    Numbers numbers(r, source);
    uint4 header;
    uint4 cell;
    bool exists = false;
#pragma unroll 1
    while (!polls.was_weary()) {
      header = load_packet(header_at);  // Pairs with send_route() of the source.
      cell = load_packet(cell_at);      // Pairs with send_cell().
      numbers.look(r, lane);
      const std::uint32_t come = lanes_with(cell.x == r.tag) & ~r.suspects;
      const std::uint32_t late = ~(come | r.suspects) & ((2U << source) - 1U);
      const std::uint32_t bits = __shfl_sync(~0U, cell.w, source);
      exists = ((come >> source) & 1U) != 0 && ((bits >> token) & 1U) != 0;
      if (late == 0 && (!exists || (numbers.here() && __all_sync(~0U, header.x == r.tag)))) break;
      (void)polls.weary();
    }
    if (polls.was_weary()) break;
    // As Coming has it.
    PeerCell said;
    said.missing = cell.x != r.tag || is_absent(r, peer);
    said.read(cell, r.signature);
    const int records = said.records();
    // The most tokens of a source, as far as is known.
    const int most = lane >= g.ranks ? 0
                     : cell.x == r.tag
                         ? static_cast<int>(cell.y >> cell_word::kTokensShift & cell_word::kNumber)
                         : limit;
    limit = min(limit, __reduce_max_sync(~0U, most));
    if (!exists || __shfl_sync(~0U, records, source) == 0) continue;
    int before = lane < source ? records : 0;
    if (lane == source) before = __popc(cell.w & low_bits(token));
    const int record = __reduce_add_sync(~0U, before);
    const int row = row_of_route(r, source, header, record, nullptr, numbers, polls, lane);
    if (polls.was_weary()) break;
    write_record(r, record, source, token, header, row, lane);
  }
  return item;
}

/// Writes the handle's entries of all records from `first` on, by the keepers: warp `first` of `warps`.
/// `ahead`: see header_ahead(). bases: null where nobody has numbered them. Returns the first item that is left if the warp
/// is weary.
__device__ __forceinline__ int describe_records(const Receipt& r, const Coming& coming,
                                                const std::int32_t* bases, int first, int warps,
                                                uint4 ahead, Polls& polls, int lane) {
  const Geometry& g = r.g;
#pragma unroll 1
  for (int item = first;; item += warps) {
    const int token = quotient(item, g.ranks_divisor);
    if (token >= coming.most) return item;
    const int source = item - token * g.ranks;
    const std::uint32_t* const tokens = coming.tokens + source * kTokenWords;
    if (((tokens[token / 32] >> (token % 32)) & 1U) == 0) continue;
    const std::byte* const header_at = header_of(r, source, token, lane);
    // Pairs with send_route() of the source.
    uint4 header = item == first ? ahead : load_packet(header_at);
    Numbers numbers(r, source);
    int before = lane < source ? coming.records[lane] : 0;
    if (lane < kTokenWords) before += __popc(tokens[lane] & low_bits(token - 32 * lane));
    const int record = __reduce_add_sync(~0U, before);
#pragma unroll 1
    for (;; header = load_packet(header_at)) {
      numbers.look(r, lane);
      if (numbers.here() && __all_sync(~0U, header.x == r.tag)) break;
      if (polls.weary()) return item;
    }
    const int row = row_of_route(r, source, header, record, bases, numbers, polls, lane);
    if (polls.was_weary()) return item;
    write_record(r, record, source, token, header, row, lane);
  }
}

}  // namespace sluice::engine::cuda
