// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_send.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "engine/cuda/verdict.cuh"

/// dispatch: who is given up while what it sends arrives (verdict.cuh). The numbers of rows follow from the counts of all
/// sources, so all warps must count the same rows of a source that is given up.
///
/// - Who closes the operation for a source copies, after the grace, what had come of its counts and of its cell: the
///   evidence, which everybody goes by afterwards. What has not come says that there is nothing. What a warp
///   acted on had come before, so it is in the evidence.
/// - A warp that is weary breaks off, and at the end of the kernel does the rest with the functions here and those named
///   *_slowly, which look whether a source is being closed. They take nothing of one that is. A block whose warps must
///   agree and do not have all of the counts or cells is behind: at its next barrier, which every warp reaches within
///   a few times kPollsPerLook polls (less than half of the grace), all leave for the end, where they do what keepers do
///   once more.
/// - Rows of that source keep their numbers, are zeroed, and have no source: one warp, which was weary and has done all else,
///   mends them (dispatch_mend.cuh).
namespace sluice::engine::cuda {

/// What a Receipt is made of, in shared memory.
struct Note {
  Block block;              // as open() leaves it
  std::uint32_t signature;  // before that
  /// 0, or when the first warp of the block was weary. Atomically.
  unsigned long long weary_since;
};
/// What a warp that is weary goes by: in as few registers as can be, since functions that are rarely called
/// should cost nothing before.
struct Late {
  const DispatchArgs* a;
  Note* note;
};

/// What the receive half of one operation goes by.
struct Receipt {
  const DispatchArgs& a;
  const Geometry& g;
  HandleArrays handle;
  std::uint32_t tag;
  std::uint32_t signature;
  std::uint32_t suspects;  // As if they were not there, whatever they push.
  int bank;
  Note* note;
  // Constants in kernels for common calls.
  Layout layout;
  bool numbers;  // Rows are numbered by Numbers.
};

__device__ __forceinline__ Late late_of(const Receipt& r) {
  return {&r.a, r.note};
}
__device__ __forceinline__ Receipt receipt_of(Late late) {
  const DispatchArgs& a = *late.a;
  const Note& note = *late.note;
  const Progress& progress = a.halves.send ? note.block.sent : note.block.received;
  return {a,
          a.geometry,
          {a.handle, &a.handle_layout},
          window::tag_of(progress.epoch + 1),
          note.signature,
          note.block.absent,
          static_cast<int>(progress.bank),
          late.note,
          a.layout,
          a.numbers};
}

/// Whether the block was weary when it opened. By one warp.
__device__ __forceinline__ bool is_weary(const Receipt& r) {
  return __any_sync(~0U, r.note->block.weary_since != 0);
}
/// By who is weary now.
__device__ __forceinline__ void note_weary(const Receipt& r) {
  const std::uint64_t since = r.note->block.weary_since;
  atomicCAS(&r.note->weary_since, 0ULL,
            static_cast<unsigned long long>(since != 0 ? since : now_ns()));
}
/// When the first of the block was, or 0: not after note_weary().
__device__ __forceinline__ std::uint64_t weary_since(const Receipt& r) {
  return atomicCAS(&r.note->weary_since, 0ULL, 0ULL);
}

__device__ __forceinline__ bool is_absent(const Receipt& r, int source) {
  return ((r.suspects >> source) & 1U) != 0;
}

/// Whether the operation is being closed for `source`. By who is weary, after it has read what it wants to take.
__device__ __forceinline__ bool is_closing(const Receipt& r, int source) {
  constexpr int kKind = static_cast<int>(protocol::Kind::dispatch);
  return glance(&r.g.state->closing[kKind][r.bank][source]) == mark_of(r.tag);
}

__device__ __forceinline__ std::byte* evidence_of(const Receipt& r, int source) {
  const int tokens = r.g.layout.shape().tokens;
  return r.g.evidence + (r.bank * r.g.ranks + source) * Evidence::bytes(r.g.local_experts, tokens);
}

/// Copies what has come of a source's counts and of its cell. By one thread, after the grace.
static __device__ __noinline__ void keep_evidence(Late late, int source) {
  const Receipt r = receipt_of(late);
  const Geometry& g = r.g;
  std::byte* const to = evidence_of(r, source);
#pragma unroll 1
  for (int expert = 0; expert < g.local_experts; ++expert) {
    const auto* const at =
        reinterpret_cast<const std::uint64_t*>(in_at(g, source, g.layout.count(r.bank, expert)));
    std::uint64_t word = load_relaxed(at);
    if (static_cast<std::uint32_t>(word) != r.tag || mutant(KernelMutant::evidence_not_kept)) {
      word = r.tag | static_cast<std::uint64_t>(~r.signature) << 32;
    }
    *reinterpret_cast<std::uint64_t*>(to + Evidence::count(expert)) = word;
  }
#pragma unroll 1
  for (int packet = 0; packet < window::cell_packets(g.layout.shape().tokens); ++packet) {
    const std::byte* const cell =
        in_at(g, source, g.layout.cell(protocol::CellKind::dispatch, r.bank));
    uint4 v = load_packet(cell + packet * window::kPacketBytes);
    if (v.x != r.tag) v = make_uint4(r.tag, 0, packet == 0 ? r.signature : 0, 0);
    store16(to + Evidence::cell(packet, g.local_experts), v);
  }
}

/// Lets the one who closes the operation for a source come to an end.
__device__ __forceinline__ void await_closed(const Receipt& r, int source) {
  constexpr int kKind = static_cast<int>(protocol::Kind::dispatch);
  await_mark(&r.g.state->closed[kKind][r.bank][source], r.tag);
}

/// Looks whether to give up `source`, and if so closes the operation for it. By any threads that wait for it,
/// now and then between two polls. Whether it was found gone: the next time it is given up.
static __device__ __noinline__ bool ask_about(Late late, int source, bool was_gone) {
  const Receipt r = receipt_of(late);
  constexpr int kKind = static_cast<int>(protocol::Kind::dispatch);
  if (is_closing(r, source)) return was_gone;
  const std::uint64_t since = wait_since::of(weary_since(r), was_gone ? source : -1);
  const std::uint64_t seen = look_up(&r.g, source, since, r.a.timeout_ns);
  if (seen != 0) return (seen & wait_since::kGone) != 0;
  std::uint32_t* const closing = &r.g.state->closing[kKind][r.bank][source];
  if (claim(closing, r.tag)) {
    wait_grace(r.g);
    keep_evidence(late_of(r), source);
    // Pairs with await_closed().
    store_release(&r.g.state->closed[kKind][r.bank][source], mark_of(r.tag));
  }
  return was_gone;
}

/// Counts a poll of a weary warp, or thread, that waits for `source` and nobody else.
__device__ __forceinline__ void wait_slowly(const Receipt& r, int source, unsigned& polls) {
  constexpr unsigned kWasGone = 1U << 31;
  static_assert(kWasGone % kPollsPerLook == 0);
  if (++polls % kPollsPerLook != 0) return;
  if (ask_about(late_of(r), source, (polls & kWasGone) != 0)) polls |= kWasGone;
}

/// Where the words lie by which `source` tells of its records: in its lane at `offset` once they have come, or in the
/// evidence at `kept`. By any threads.
static __device__ __noinline__ const std::byte* await_told(Late late, int source,
                                                           std::uint32_t offset,
                                                           std::uint32_t kept) {
  const Receipt r = receipt_of(late);
  const std::byte* const at = in_at(r.g, source, offset);
  note_weary(r);
  unsigned polls = 0;
#pragma unroll 1
  for (;;) {
    const std::uint64_t word = load_relaxed(reinterpret_cast<const std::uint64_t*>(at));
    if (is_closing(r, source)) {
      await_closed(r, source);
      return evidence_of(r, source) + kept;
    }
    if (static_cast<std::uint32_t>(word) == r.tag) return at;
    wait_slowly(r, source, polls);
  }
}
/// A packet of its cell. Not of one that is absent.
__device__ __forceinline__ uint4 await_cell(const Receipt& r, int source, int packet) {
  const std::uint32_t offset = r.g.layout.cell(protocol::CellKind::dispatch, r.bank) +
                               static_cast<std::uint32_t>(packet) * window::kPacketBytes;
  return load_packet(
      await_told(late_of(r), source, offset, Evidence::cell(packet, r.g.local_experts)));
}
/// A count.
__device__ __forceinline__ int await_count(const Receipt& r, int source, int expert) {
  if (is_absent(r, source)) return 0;
  const std::byte* const at =
      await_told(late_of(r), source, r.g.layout.count(r.bank, expert), Evidence::count(expert));
  const std::uint64_t word = load_relaxed(reinterpret_cast<const std::uint64_t*>(at));
  return count_in(static_cast<std::uint32_t>(word >> 32), r.signature);
}

/// Rows of a local expert that come from the sources below `sources`. For any number of lanes.
static __device__ __noinline__ int count_rows_slowly(Late late, int sources, int expert) {
  const Receipt r = receipt_of(late);
  int total = 0;
#pragma unroll 1
  for (int source = 0; source < sources; ++source) total += await_count(r, source, expert);
  return total;
}

/// expert_major: where the segment of this lane's local expert begins. By one warp.
static __device__ __noinline__ int begin_slowly(Late late, int expert) {
  const Receipt r = receipt_of(late);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto alignment = static_cast<int>(r.a.alignment);
  int begin = 0;
  int before = 0;  // rows of all experts below `first`
#pragma unroll 1
  for (int first = 0; first < r.g.local_experts; first += 32) {
    int end = 0;
    if (first + lane < r.g.local_experts) end = count_rows_slowly(late, r.g.ranks, first + lane);
    __syncwarp();
    end = (end + alignment - 1) / alignment * alignment;
    const int rows = end;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, end, step);
      if (lane >= step) end += other;
    }
    const int own = __shfl_sync(~0U, before + end - rows, (expert - first) & 31);
    if (expert >= first && expert < first + 32) begin = own;
    before += __shfl_sync(~0U, end, 31);
  }
  return begin;
}

}  // namespace sluice::engine::cuda
