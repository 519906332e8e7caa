// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/carriers.cuh"
#include "engine/cuda/dispatch_keep.cuh"
#include "engine/cuda/dispatch_mend.cuh"
#include "engine/cuda/dispatch_padding.cuh"
#include "engine/cuda/dispatch_receive.cuh"
#include "engine/cuda/dispatch_shares.cuh"

namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Dynamic shared memory: a herald's route table; later one integer per expert here, where the segments
/// of expert_major start.
extern __shared__ __align__(16) std::byte shared_memory[];

/// What heralds send. By a whole block.
template <bool kCommon, bool kNodes>
__device__ __forceinline__ void send_heralds(const DispatchArgs& a, const RouteTable& table,
                                             const Crew& crew, const Shared& shared,
                                             const Stamp& stamp, bool refused, float weight,
                                             int warp, int lane) {
  const Geometry& g = a.geometry;
  const std::uint32_t skipped = shared.note.block.suspects;
  const HeaderShare share(crew, warp, lane);
  if (share.any && (kCommon || !a.cached)) {
    if (table.words != 0) {
      send_headers<kCommon>(a, table, shared.repeats, share.first, share.step, weight, stamp,
                            skipped);
    } else {
      send_headers_slowly<kCommon>(&a, table.masks, table.tokens, share.first / 32, share.step / 32,
                                   stamp, skipped);
    }
  }
  if (crew.herald != 0) return;
  int bytes = 0;
  // Side by side: cells by the last warps, counts by the first.
  const int peer = kBlockWarps - 1 - warp;
  if (peer < g.ranks && ((skipped >> peer) & 1U) == 0) {
    const std::uint32_t tokens = tokens_to(table, peer, lane);
    const int records = __reduce_add_sync(~0U, __popc(tokens));
    const std::uint32_t word =
        refused ? cell_word::kRefused
                : static_cast<std::uint32_t>(records | table.tokens << cell_word::kTokensShift);
    send_cell<true>(g, peer, CellKind::dispatch, stamp.bank, stamp.tag, word, stamp.signature,
                    a.rows ? a.record_packets : 0, tokens, lane);
    if (peer != g.rank && !refused) {
      // Rows that go to other nodes are counted where they are put.
      const bool near = !kNodes || g.published == nullptr || ((g.near >> peer) & 1U) != 0;
      const int packets =
          (a.rows && near ? a.record_packets : 0) + (kCommon || !a.cached ? g.top_k : 0);
      bytes = (records * packets + window::cell_packets(g.layout.shape().tokens)) * 16;
    }
  }
  send_counts(g, table, stamp, skipped);
  if (lane == 0 && bytes != 0) count_bytes(g, Kind::dispatch, bytes);
}

/// Asks for what is needed first, before it may be read.
template <typename Encoder>
__device__ __forceinline__ void prefetch_inputs(const DispatchArgs& a, bool heralds, int task,
                                                int send_tasks, int shift, int places, int lane) {
  const int token = quotient(task, a.units_divisor);
  if (task < send_tasks) {
    const int unit = task - token * static_cast<int>(a.units_divisor.divisor);
    const int byte = unit * window::kUnitElements * 2 + lane * 32;  // A sector for every lane.
    if (byte < a.geometry.hidden * 2) prefetch(row_of<true>(a.x, token) + byte);
    if (lane == 0) prefetch(id_at(a, token, 0));
  }
  if (!heralds) return;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < places; at += kBlockThreads) {
    const int k = at & ((1 << shift) - 1);
    if (k >= a.geometry.top_k) continue;
    prefetch(id_at(a, at >> shift, k));
    if (a.weights != nullptr) prefetch(weight_at(a, at >> shift, k));
  }
}

/// What a warp has left, if it is no task: nothing at all, or only what is not done by tasks.
constexpr int kNothing = -1;
constexpr int kNoTask = -2;

/// A warp's share of what comes: from a first task on, every so many. Returns the task at which it has become weary, or
/// kNothing.
template <int kSpan, typename Encoder, bool kRecords>
__device__ __forceinline__ int take_records(const Receipt& r, int first, int warps,
                                            const std::int32_t* bases, Recorder<kRecords>& recorder,
                                            int lane) {
  Polls polls;
  int limit = r.g.layout.shape().tokens;
  const bool same_source = warps == quotient(warps, r.g.ranks_divisor) * r.g.ranks;
#pragma unroll 1
  for (int at = first;; at += warps) {
    const Task<kSpan> task(r.a, at);
    if (task.token >= limit) return kNothing;
    const int tokens = take_units<kSpan, Encoder>(r, task.source, task.token, task.unit, bases,
                                                  polls, recorder, lane);
    if (tokens == kSlowly) return at;
    if (same_source) limit = tokens;
  }
}

/// All that a warp has left that is weary, from task `first` on, if it is one; a block that is behind comes as a whole. The
/// last that they do, and the only call for it: what lives beyond a call costs those registers who never make it.
template <int kSpan, typename Encoder>
__device__ __noinline__ void finish_slowly(Late late, Shared& shared, int first, int warps,
                                           bool drop) {
  const Receipt r = receipt_of(late);
  auto* const memory = reinterpret_cast<std::int32_t*>(shared_memory);
  const bool numbered = needs_bases(r);
  if (shared.crew.keeper >= 0) {
    keep_slowly(late, shared, memory, numbered, drop);
  } else if (shared.behind) {
    number_rows<true>(r, memory, false, shared);
  }
  const std::int32_t* const bases = numbered || shared.behind ? memory : nullptr;
  if (!Encoder::kCommon && shared.behind && shared.crew.works && r.a.rows && !drop &&
      r.a.zero_padding) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    zero_padding(late, warps, warp * shared.crew.workers + shared.crew.block, bases);
  }
  if (first >= 0) {
    int limit = r.g.layout.shape().tokens;
    const bool same_source = warps == quotient(warps, r.g.ranks_divisor) * r.g.ranks;
#pragma unroll 1
    for (int at = first;; at += warps) {
      const Task<kSpan> task(r.a, at);
      if (task.token >= limit) break;
      const int tokens =
          take_slowly<kSpan, Encoder>(late, task.source, task.token, task.unit, bases);
      if (same_source) limit = tokens;
    }
  }
  mend(late, drop, bases);
}

/// A warp's share of the records of a cached dispatch.
template <typename Encoder>
__device__ __noinline__ void take_all_cached(Late late, int first, int warps) {
  const Receipt r = receipt_of(late);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int units = static_cast<int>(r.a.units_divisor.divisor);
  Polls polls(is_weary(r));
  const int tasks = static_cast<int>(r.handle.source_offsets()[r.g.ranks]) * units;
#pragma unroll 1
  for (int task = first; task < tasks; task += warps) {
    const int record = quotient(task, r.a.units_divisor);
    take_cached<Encoder>(r, record, task - record * units, polls, lane);
  }
}

/// For a kernel: the layout that it is for, or any.
constexpr int kAnyLayout = -1;

template <typename Encoder, int kSpan, bool kAlone, int kLayout, bool kNumbers, bool kRecords>
__global__ void __launch_bounds__(kBlockThreads, blocks_together(kAlone))
    dispatch_kernel(__grid_constant__ Parameter<DispatchArgs> a) {
  constexpr bool kCommon = Encoder::kCommon;
  constexpr bool kNodes = Encoder::kNodes;
  constexpr bool kFew = kCommon && kSpan == 1;
  __shared__ Shared shared;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool sends = kCommon || a.halves.send;
  const bool receives = kCommon || a.halves.receive;
  if constexpr (kNodes) {
    if (carries(g)) {
      return carry_meanwhile<registers_of(kAlone)>(&g, Kind::dispatch, receives, shared_memory);
    }
  }
  const bool cached = !kCommon && a.cached;
  const bool rows = kCommon || a.rows;
  Recorder<kRecords> recorder(g.recording);
  if (!kNodes || g.published == nullptr) let_next_start();
  if (threadIdx.x == kTouchWarp * 32) touch_parameters(a, &shared.parameters);
  bool refused = !kCommon && a.refused;
  std::uint32_t signature = a.signature;
  if (cached && !refused) {
    await_previous();
    refused = !goes_along(&a);
    signature = mix(signature,
                    read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle)).dispatch);
  }
  const bool drop = !kCommon && (a.drop || refused);
  const int tokens = refused || !sends ? 0 : a.tokens;
  const RouteTable table(shared_memory, g.experts, tokens, route_shift(g.top_k));
  const int places = tokens << table.shift;
  // A warp for each of the records that come, if the others have as many tokens, but not too many: they are workers less.
  const int records = (a.tokens * g.ranks + kBlockWarps - 1) / kBlockWarps;
  const int describers =
      max(kDescribersLeast, min(records, max(kDescribers, 1 + a.tokens / kBlockWarps)));
  const Crew early(g, 1 + (places + kHeraldPlaces - 1) / kHeraldPlaces, 1 + max(describers, 1));
  auto* const bases = reinterpret_cast<std::int32_t*>(shared_memory);
  // Pieces are numbered so that neighbours are on different multiprocessors.
  const int units = static_cast<int>(a.units_divisor.divisor);
  const int senders = senders_of(early, kCommon && a.many);
  const int send_step = senders * kBlockWarps;
  const int send_place = warp * senders + early.block;
  const int send_tasks = early.block < senders && rows ? tokens * units : 0;
  if (threadIdx.x == 0) {
    shared.crew = early;
    shared.behind = false;
    shared.note.signature = signature;
    shared.note.weary_since = 0;
  }
  if (early.herald >= 0 || early.keeper >= 0) {
    if (threadIdx.x == 0) {
      shared.bad_routes = shared.overflow_rows = 0;
      shared.repeats = false;
    }
    if (threadIdx.x < kBlockWarps) shared.left[threadIdx.x] = -1;
    auto* const coming = reinterpret_cast<std::uint32_t*>(&shared.coming);
    if (threadIdx.x < sizeof(Coming) / 4) coming[threadIdx.x] = 0;
    const int clear = early.herald >= 0 ? table.clear_words(g.experts) : 0;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < clear; at += kBlockThreads) {
      table.notes[at] = 0;
    }
  }
  __syncthreads();
  if constexpr (kCommon) {
    prefetch_inputs<Encoder>(a, early.herald >= 0, send_place, send_tasks, table.shift, places,
                             lane);
  }
  await_previous();
  // Two launches at a time leave room for what is carried from other nodes (CudaEngine::latency_blocks()).
  if (kNodes && g.published != nullptr) let_next_start();
  recorder.ready();
  // Where what was asked for in advance has taken the registers.
  const Crew crew = kCommon && !kFew ? shared.crew : early;

  // Everything that is needed first is asked for at once.
  std::uint64_t epoch = 0;
  std::uint32_t tag = 0;
  std::uint32_t skipped = 0;
  int bank = 0;
  int task = send_place;
#pragma unroll 1
  for (bool opened = false;; opened = true) {
    const int token = quotient(task, a.units_divisor);
    const int unit = task - token * units;
    typename Encoder::Source source;
    int id = kNoRoute;
    if (task < send_tasks) {
      Encoder::load(a, row_of<kCommon>(a.x, token), token, unit, lane, source);
      id = load_route<kCommon>(a, token, lane);
    }
    if (!opened) {
      const HeaderShare share(crew, warp, lane);
      float weight = 0.0F;
      if (share.any && share.first < places) {
        weight =
            route_weight(a, share.first >> table.shift, share.first & ((1 << table.shift) - 1));
      }
      if (warp == kOpenWarp) open(g, Kind::dispatch, sends, a.timeout_ns, lane, shared.note.block);
      if (crew.herald >= 0) note_routes<kCommon, kFew ? 1 : 2>(a, table, &shared.repeats);
      if (crew.keeper == 0 && sends && receives && !cached) {
        const bool writes = kCommon || a.handle != nullptr;
        const HandleArrays handle{a.handle, &a.handle_layout};
        keep_routes<kCommon>(a, tokens, writes ? handle.topk_ids() : nullptr,
                             writes ? handle.topk_weights() : nullptr, &shared.bad_routes);
      }
      __syncthreads();
      const Progress progress = sends ? shared.note.block.sent : shared.note.block.received;
      epoch = progress.epoch + 1;
      bank = static_cast<int>(progress.bank);
      tag = window::tag_of(epoch);
      skipped = shared.note.block.suspects;
      recorder.open(Kind::dispatch, epoch);
      recorder.mark(crew.herald >= 0 ? Phase::count : Phase::wait);
      // Before this block sends anything: a release waits for what was sent before.
      if (sends && crew.herald == 0 && warp == kOpenWarp) {
        tell(g, Kind::dispatch, shared.note.block.received.epoch, skipped, lane);
      }
      if (sends && crew.herald >= 0) {
        send_heralds<kCommon, kNodes>(a, table, crew, shared, {tag, signature, bank}, refused,
                                      weight, warp, lane);
      }
      if (kCommon && warp == kCloseWarp) {
        close(g, Kind::dispatch, Halves{true, true}, shared.note.block, lane);
      }
      if (crew.herald >= 0) recorder.mark(Phase::put);
    }
    if (task >= send_tasks) break;
    Unit<Encoder> encoded;
    encoded.encode(a, source, lane);
    recorder.mark(Phase::quantise);
    const std::uint32_t ranks = ranks_of(g, id) & ~skipped;
    encoded.send(a, kNodes ? row_ranks(g, ranks) : ranks, token, unit, bank, lane);
    recorder.mark(Phase::put);
    task += send_step;
  }

  if (kNodes && sends) publish(g, CellKind::dispatch, epoch);
  if (!receives && !cached && crew.herald == 0) {
    keep_routes<kCommon>(a, tokens, a.saved->ids, a.saved->weights, &shared.bad_routes);
    __syncthreads();
    if (threadIdx.x == 0) a.saved->bad_routes = shared.bad_routes;
  }
  if (receives) {
    // As it is: so much less to keep in registers while others send.
    const Crew own = shared.crew;
    const Receipt receipt{a,
                          g,
                          {a.handle, &a.handle_layout},
                          tag,
                          signature,
                          shared.note.block.absent,
                          bank,
                          &shared.note,
                          kLayout == kAnyLayout ? a.layout : static_cast<Layout>(kLayout),
                          kNumbers};
    bool weary = false;
    if (own.keeper >= 0) {
      __syncthreads();  // The route table is read no more.
      weary = keep_books<kCommon, kFew, false>(receipt, own, shared, bases, drop, epoch, recorder,
                                               warp, lane);
    } else if (own.works && needs_bases(receipt) && !cached && !drop) {
      number_rows<false>(receipt, bases, false, shared);
      recorder.mark(Phase::count);
    }
    weary = weary || shared.behind || is_weary(receipt);
    int left = weary ? kNoTask : kNothing;
    const Takers takers(own, kCommon && a.many, warp);
    if (own.works && rows && !drop && takers.takes) {
      if (cached) {
        take_all_cached<Encoder>(late_of(receipt), takers.first, takers.warps);
      } else if (weary) {
        left = takers.first;
      } else {
        left = take_records<kSpan, Encoder>(receipt, takers.first, takers.warps, bases, recorder,
                                            lane);
      }
      if (!kCommon && a.zero_padding && !shared.behind) {
        zero_padding(late_of(receipt), takers.warps, warp * own.workers + own.block, bases);
      }
      const bool nothing = !kCommon && left == kNothing;
      if (nothing && __any_sync(~0U, weary_since(receipt) != 0)) left = kNoTask;
    }
    if (left != kNothing) {
      finish_slowly<kSpan, Encoder>(late_of(receipt), shared, left, takers.warps, drop);
      recorder.mark(Phase::place);
    }
  }
  if constexpr (!kCommon) {
    // Halves may run side by side: what this block has not done yet is not told by the other half. For
    // other blocks, that there are 2d + 1 banks must do.
    __syncthreads();
    if (warp == kCloseWarp)
      close(g, Kind::dispatch, Halves{sends, receives}, shared.note.block, lane);
  }
  recorder.finish(crew.role());
  if constexpr (kNodes) count_worked(g, Kind::dispatch, receives);
}

/// Common calls have kernels of their own, from which all that is rare is left out. Where there are other nodes: of few tokens.
bool is_common(const DispatchArgs& a) {
  const bool contiguous = a.x.slab_rows == 0 && a.out.slab_rows == 0 && a.scales.slab_rows == 0;
  const bool plain_scales =
      a.whole_scales && a.codec.scale_form == ScaleForm::f32 && a.codec.group == kCommonGroup;
  const bool codec =
      a.codec.kind == CodecKind::bf16 || (a.codec.kind == CodecKind::fp8 && plain_scales);
  return contiguous && codec && a.aligned && a.rows && a.halves.send && a.halves.receive &&
         !a.refused && !a.cached && !a.drop && !a.zero_padding && a.mask == nullptr &&
         a.x_dtype == DType::bf16 &&
         (a.geometry.published == nullptr || (!a.many && a.geometry.recording.words == nullptr));
}

using Kernel = void (*)(Parameter<DispatchArgs>);

/// Whether units go in pairs.
bool takes_pairs(const DispatchArgs& a) {
  return a.many && a.units_divisor.divisor % 2 == 0;
}

/// Few tokens: small pieces for many warps, of which a multiprocessor has one block's. Many: fewer pieces than warps,
/// where units go in pairs.
template <typename Encoder, int kLayout, bool kRecords>
Kernel common_kernel(const DispatchArgs& a) {
  if constexpr (!Encoder::kNodes) {
    if constexpr (Encoder::kVectors == 1) {
      if (takes_pairs(a)) return dispatch_kernel<Encoder, 2, false, kLayout, false, kRecords>;
    }
    if (a.many) return dispatch_kernel<Encoder, 1, false, kLayout, false, kRecords>;
  }
  if constexpr (kLayout != static_cast<int>(Layout::rank_major)) {
    if (a.numbers) return dispatch_kernel<Encoder, 1, true, kLayout, true, kRecords>;
  }
  return dispatch_kernel<Encoder, 1, true, kLayout, false, kRecords>;
}
/// One for each layout: instructions that are not fetched are what makes few tokens fast.
template <typename Encoder>
Kernel common_kernel(const DispatchArgs& a) {
  if constexpr (!Encoder::kNodes) {
    if (a.geometry.recording.words != nullptr) return common_kernel<Encoder, kAnyLayout, true>(a);
  }
  switch (a.layout) {
    case Layout::expert_major:
      return common_kernel<Encoder, static_cast<int>(Layout::expert_major), false>(a);
    case Layout::expert_slab:
      return common_kernel<Encoder, static_cast<int>(Layout::expert_slab), false>(a);
    default: return common_kernel<Encoder, static_cast<int>(Layout::rank_major), false>(a);
  }
}
template <typename Encoder>
constexpr Kernel general_kernel = dispatch_kernel<Encoder, 1, false, kAnyLayout, false, true>;

Kernel kernel_for(const DispatchArgs& a) {
  const bool wide = a.x_dtype == DType::f32;
  const bool nodes = a.geometry.published != nullptr;
  if (a.codec.kind == CodecKind::fp8) {
    if (is_common(a)) {
      return nodes ? common_kernel<Fp8Encoder<2, true, true>>(a)
                   : common_kernel<Fp8Encoder<2, true>>(a);
    }
    if (a.x_dtype == DType::e4m3) return general_kernel<GivenEncoder>;
    return wide ? general_kernel<Fp8Encoder<4, false>> : general_kernel<Fp8Encoder<2, false>>;
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  if (out == a.x_dtype || !a.rows) {
    if (is_common(a)) {
      return nodes ? common_kernel<RawEncoder<2, true, true>>(a)
                   : common_kernel<RawEncoder<2, true>>(a);
    }
    return out == DType::f32 ? general_kernel<RawEncoder<4, false>>
                             : general_kernel<RawEncoder<2, false>>;
  }
  return out == DType::f32 ? general_kernel<ConvertEncoder<4>> : general_kernel<ConvertEncoder<2>>;
}

/// Shared memory comes in steps, so that few launches differ in it.
constexpr int kSharedStep = 4096;
static_assert(kCarrierBytes <= kSharedStep);
constexpr int kSharedMost = kNoteBytes + kTokensMax * 2 + kSharedStep;

int shared_bytes(const DispatchArgs& a) {
  const Geometry& g = a.geometry;
  const int bytes =
      std::max(RouteTable::bytes(g.experts, a.tokens, route_shift(g.top_k)), 4 * g.local_experts);
  return (bytes + kSharedStep - 1) / kSharedStep * kSharedStep;
}

}  // namespace

bool numbers_rows_at_once(const DispatchArgs& args) {
  return is_common(args) && !args.many && Numbers::wanted(args);
}

Footprint choose_dispatch(const DispatchArgs& args) {
  return {reinterpret_cast<const void*>(kernel_for(args)),
          static_cast<std::size_t>(shared_bytes(args))};
}

int launch_dispatch(const DispatchArgs& args, const Footprint& chosen, const Launch& launch) {
  return launch_kernel(reinterpret_cast<Kernel>(const_cast<void*>(chosen.kernel)), launch,
                       chosen.shared_bytes, args);
}

int load_dispatch_kernels() {
  std::uint64_t any = 0;
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::e4m3}) {
      for (const bool aligned : {false, true}) {
        for (int bits = 0; bits < 32 * 3; ++bits) {
          DispatchArgs args;
          args.layout = static_cast<Layout>(bits / 32);
          args.geometry.recording.words = (bits & 1) != 0 ? &any : nullptr;
          args.codec.kind = kind;
          args.x_dtype = dtype;
          args.aligned = aligned;
          args.many = (bits & 2) != 0;
          args.numbers = (bits & 4) != 0;
          args.whole_scales = true;
          args.units_divisor = Divisor((bits & 8) != 0 ? 3 : 2);
          if ((bits & 16) != 0) args.geometry.published = reinterpret_cast<std::byte*>(&any);
          const int error = load_kernel(kernel_for(args), kSharedMost);
          if (error != cudaSuccess) return error;
        }
      }
    }
  }
  return cudaSuccess;
}

bool kernels_await_previous() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel_for(DispatchArgs())) == cudaSuccess &&
         attributes.ptxVersion >= 90;  // await_previous() does something.
}

}  // namespace sluice::engine::cuda
