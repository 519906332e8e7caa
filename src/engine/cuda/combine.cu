// SPDX-License-Identifier: MIT
#include <limits>

#include "engine/cuda/carriers.cuh"
#include "engine/cuda/combine_drain.cuh"
#include "engine/cuda/combine_order.cuh"
#include "engine/cuda/combine_receive.cuh"
#include "engine/cuda/combine_send.cuh"

/// combine: the expert's rank forms one partial sum per record and pushes it home; home adds the
/// partial sums of a token, ranks ascending, as soon as they are there.
namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// What the herald does in a send half.
template <typename Traits>
__device__ __forceinline__ void send_cells(const Combine& c, bool usable, std::uint64_t received,
                                           int packets, int warp, int lane) {
  const Geometry& g = c.g;
  if (warp < g.ranks && ((c.block.suspects >> warp) & 1U) == 0) {
    std::uint32_t word = cell_word::kRefused;
    std::uint32_t tokens = 0;
    if (usable) {
      const std::int64_t* const offsets = c.handle.source_offsets();
      word = c.handle.header()->accepted.contains(warp)
                 ? static_cast<std::uint32_t>(offsets[warp + 1] - offsets[warp])
                 : cell_word::kNothing;
    }
    const bool records = (word & (cell_word::kRefused | cell_word::kNothing)) == 0;
    std::uint32_t directly = word;
    if (records && gives_sums<Traits>(c, warp)) {  // As one of its node.
      directly = cell_word::kNothing;
      tokens = answered_tokens(c.handle, warp);
    }
    send_cell<false>(g, warp, CellKind::combine, c.bank, c.tag, directly, c.signature, packets,
                     tokens, lane);
    if (lane == 0 && warp != g.rank && records) {
      // Of `single`, rows are counted where they are sent.
      int each = 1 + (c.a.single ? 0 : packets & ~static_cast<int>(window::kFormFlags));
      if (c.a.row_weights != nullptr) each += g.layout.weight_packets();
      count_bytes(g, Kind::combine, (static_cast<int>(word) * each + window::kFormPacket + 1) * 16);
    }
  }
  if (warp == kOpenWarp) tell(g, Kind::combine, received, c.block.suspects, lane);
}

/// Likewise in a receive half, by a whole block. Awaits every peer's cell, also of those that had
/// nothing to say: the proof that banks are reused by.
__device__ __forceinline__ void keep_books(const Combine& c, bool usable, bool drop, int warp,
                                           int lane) {
  __shared__ std::uint32_t ranks;
  const Geometry& g = c.g;
  if (warp == 0) {
    const PeerCell cell =
        await_cells(&g, CellKind::combine, c.bank, c.tag, c.signature, c.a.timeout_ns);
    const std::uint32_t missing = lanes_with(cell.missing) | c.block.absent;
    const std::uint32_t refused = lanes_with(cell.refused);
    const std::uint32_t unwanted = usable ? lanes_with(cell.mismatched) : 0;
    if (lane == 0) ranks = (drop ? (1U << g.ranks) - 1U : unwanted) & ~c.block.absent;
    if (lane == 0) report_missing(&c.a, missing, c.a.report != nullptr);
    if (lane == 0 && (refused | unwanted) != 0) {
      add_totals(&g, Kind::combine, {}, {0, refused, unwanted});
      if (c.a.report != nullptr) {
        c.a.report->refused.words[0] = refused;
        c.a.report->mismatched.words[0] = unwanted;
      }
    }
  }
  __syncthreads();
  if (ranks != 0) drain_answers(&c.a, c.tag, c.bank, ranks);
}

/// Of the kernels for many tokens: rows that are summed.
extern __shared__ __align__(128) std::byte shared_rows[];

template <typename Traits, bool kRecords>
__global__ void __launch_bounds__(kBlockThreads, blocks_together(Traits::kAlone))
    combine_kernel(__grid_constant__ Parameter<CombineArgs> a) {
  constexpr bool kCommon = Traits::kCommon;
  constexpr bool kWeights = Traits::kWeights;
  constexpr bool kGivesWeights = kWeights && !Traits::kSingle;
  __shared__ Block block;
  __shared__ std::uint32_t touched;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const Crew crew(g, 1, 0);
  // With few tokens only some warps have a piece: those that fetch their instructions together.
  constexpr int kTogether = 4;  // Warps w, w + 4 and so on do.
  const int seat =
      Traits::kSpan > 1 ? warp : warp % kTogether * (kBlockWarps / kTogether) + warp / kTogether;
  const bool sends = kCommon || a.halves.send;
  const bool receives = kCommon || a.halves.receive;
  if constexpr (Traits::kNodes) {
    if (carries(g)) {
      return carry_meanwhile<registers_of(Traits::kAlone)>(&g, Kind::combine, receives,
                                                           shared_rows);
    }
  }
  Recorder<kRecords> recorder(g.recording);
  if (!Traits::kNodes || g.published == nullptr) let_next_start();

  // With many tokens the next record's rows are asked for before this one's sum is sent: what is asked for
  // while stores to peers are under way waits behind them. And no warp waits for those that are still
  // asking, but for open() only.
  constexpr bool kAhead = Traits::kSpan > 1;
  __shared__ std::uint64_t opened;
  __shared__ int taken;
  if constexpr (kAhead) {
    if (threadIdx.x == 0) {
      prepare_signal(&opened);
      taken = 0;
    }
    __syncthreads();
  }
  const int warps = crew.workers * kBlockWarps;
  const int place = warp * crew.workers + crew.block;
  const bool asks = kCommon || !a.refused;
  Combine c{a, g, {const_cast<std::byte*>(a.handle), &a.handle_layout}, 0, 0, block, 0, 0};
  Pieces pieces(a, crew);
  int turn = seat;
  const auto read_record = [&](int of) {
    return RecordPlace(c.handle, g, pieces.record(of), lane).read(g, lane);
  };
  const RecordPlace first(c.handle, g, pieces.record(turn), lane);
  if (threadIdx.x == kTouchWarp * 32) touch_parameters(a, &touched);
  await_previous();
  // Two launches at a time leave room for what is carried from other nodes (CudaEngine::latency_blocks()).
  if (Traits::kNodes && g.published != nullptr) let_next_start();
  recorder.ready();

  // Everything that is needed first is asked for at once, whether or not there is such a record.
  window::HandleBrief brief;
  Record record;
  Record ahead;
  if (!kAhead && warp == kOpenWarp) open(g, Kind::combine, sends, a.timeout_ns, lane, block);
  if (asks) {
    brief = read_brief(c.handle.header());
    record = first.read(g, lane);
    if (kAhead) ahead = read_record(turn + kBlockWarps);
  }
  // Weights to send are read before it is known to whom they may be sent.
  int given_token = kWeights && crew.works ? warps - 1 - place : 0;
  const int given_tokens =
      kWeights && asks && sends && crew.works ? min(a.tokens, a.weights_tokens) : 0;
  GivenWeights given;
  if (given_token < given_tokens) given = read_given(c, given_token, lane);
  if (kAhead && warp == kOpenWarp) {
    open(g, Kind::combine, sends, a.timeout_ns, lane, block);
    if (lane == 0) raise(&opened);  // Pairs with raised() in begin().
  }

  const bool usable = (brief.key == g.handle_key) & fits(a, brief);
  const int records = usable && sends && crew.works ? static_cast<int>(brief.records) : 0;
  if (records > pieces.order.all) {
    // Others had more tokens.
    pieces.order.all = g.ranks * g.layout.shape().tokens;
    record = read_record(turn);
    if (kAhead) ahead = read_record(turn + kBlockWarps);
  }
  pieces.count(records);
  // Another's handle may say anything.
  record.row = min(record.row, a.y_last_row);
  c.layout = brief.layout;
  std::uint64_t began = 0;
  Patience patience(g, a.timeout_ns, began);
  std::uint64_t received = 0;
  const auto begin = [&] {
    if constexpr (kAhead) {
      // Without a deadline of its own: open() has one.
      while (!raised(&opened) && !mutant(KernelMutant::opening_not_awaited)) {
      }
      __syncwarp();
    } else {
      __syncthreads();
    }
    const Progress progress = sends ? block.sent : block.received;
    c.signature = mix(a.signature, brief.dispatch * 4 + c.layout);
    c.tag = window::tag_of(progress.epoch + 1);
    c.bank = static_cast<int>(progress.bank);
    received = block.received.epoch;
    recorder.open(Kind::combine, progress.epoch + 1);
    recorder.mark(Phase::wait);
    if (receives && crew.herald == 0 && threadIdx.x == 0 && a.report != nullptr) {
      begin_report(&g, a.report, c.bank, c.tag);
    }
    if (kCommon && warp == kCloseWarp) close(g, Kind::combine, Halves{true, true}, block, lane);
    if (kWeights && usable && (kCommon || (!Traits::kSingle && a.weights_given && !a.plain_sum))) {
#pragma unroll 1
      while (given_token < given_tokens) {
        send_weights(c, given, given_token, lane);
        given_token += warps;
        if (given_token < given_tokens) given = read_given(c, given_token, lane);
      }
    }
    // Before any wait for weights: who waits for them looks at the cell.
    if (sends && crew.herald == 0) {
      const int packets = g.hidden * (a.codec == DType::f32 ? 4 : 2) / 16;
      std::uint32_t flags = a.single ? window::kRowPerRoute : 0U;
      if (!kCommon && kGivesWeights && a.weights_given) flags |= window::kWeightsBefore;
      if (Traits::kSums) flags |= form_by_node(a);
      send_cells<Traits>(c, usable, received, packets | static_cast<int>(flags), warp, lane);
    }
    // With the cells, for the same reason.
    if (!kCommon && kGivesWeights && sends && a.weights_given) {
      publish(g, CellKind::weights, progress.epoch + 1);
    }
  };
  const auto ask = [&](Rows<Traits>& rows, const Record& of, int which) {
    rows.ask(a, of.row, summed_routes(c, of),
             pieces.step(which) * Traits::kStep + lane * kLaneElements);
  };
  const auto send = [&](Rows<Traits>& rows, const auto& ask_next) {
    send_sum<Traits>(c, record, rows, pieces.record(turn), pieces.step(turn), patience, recorder,
                     lane, ask_next);
  };
  if constexpr (Traits::kSingle) {
    begin();
    if (!pieces.exists(turn)) turn = pieces.next(turn);
#pragma unroll 1
    for (; turn >= 0; turn = pieces.next(turn)) {
      record = read_record(turn);
      const int step = pieces.step(turn);
      if (!begin_record<Traits>(c, record, pieces.record(turn), step, patience, recorder, lane)) {
        continue;
      }
      send_rows<Traits>(c, record, step, lane);
      recorder.mark(Phase::put);
    }
  } else if constexpr (kAhead) {
    Rows<Traits> rows(shared_rows);
    bool exists = pieces.exists(turn);
    if (exists) ask(rows, record, turn);
    begin();
    if (exists && !usable) rows.forget();
    exists = exists && usable;
    int next = turn;
    int is_ahead = turn + kBlockWarps;  // The turn of `ahead`.
    const auto ask_next = [&] {
      next = pieces.next(next);
      if (next < 0) return;
      if (is_ahead != next) ahead = read_record(next);
      is_ahead = next;
      ask(rows, ahead, next);
    };
    if (!exists) ask_next();
#pragma unroll 1
    for (bool asked = exists; asked || next >= 0; asked = false) {
      if (!asked) {
        turn = next;
        record = ahead;
      }
      send(rows, ask_next);
    }
  } else {
    // A second piece, which few warps have, is not asked for in advance.
    {
      Rows<Traits> rows(shared_rows);
      const bool exists = pieces.exists(turn) && record.home >= 0;
      if (exists) ask(rows, record, turn);
      begin();
      if (exists) send(rows, [] {});
    }
#pragma unroll 1
    for (turn = pieces.next(turn); turn >= 0; turn = pieces.next(turn)) {
      record = read_record(turn);
      Rows<Traits> rows(shared_rows);
      ask(rows, record, turn);
      send(rows, [] {});
    }
  }
  if (Traits::kNodes && sends) publish(g, CellKind::combine, block.sent.epoch + 1);
  if (receives) {
    const bool drop = !usable || (!kCommon && a.drop);
    if (!drop && crew.works) {
      // Warps with nothing to send are the first to take.
      const int parts = static_cast<int>(a.taken_divisor.divisor);
      const int tasks = a.tokens * parts;
      std::uint32_t lost = 0;
#pragma unroll 1
      for (int turn = kAhead ? next_turn(&taken, lane) : kBlockWarps - 1 - seat;;
           turn = kAhead ? next_turn(&taken, lane) : turn + kBlockWarps) {
        const int task = turn * crew.workers + crew.workers - 1 - crew.block;
        if (task >= tasks) break;
        const int token = quotient(task, a.taken_divisor);
        if constexpr (Traits::kSingle) {
          lost |= chain_token<Traits>(c, token, task - token * parts, patience, lane);
        } else {
          lost |= sum_token<typename Traits::OneStep>(c, token, task - token * parts, patience,
                                                      recorder, lane);
        }
      }
      if (lost != 0 || patience.was_weary()) {
        using Taken = std::conditional_t<Traits::kSingle, Traits, typename Traits::OneStep>;
        settle<Taken>(&a, &block, c.signature, c.tag, c.bank, -1, 0);
      }
      if (!kCommon && a.weights_home != nullptr) {
#pragma unroll 1
        for (int token = place; token < a.tokens; token += warps) {
          take_row_weights<Traits>(c, token, patience, lane);
        }
      }
    }
    if (crew.herald == 0) {
      keep_books(c, usable, drop, warp, lane);
      recorder.mark(Phase::count);
    }
  }
  if constexpr (!kCommon) {
    // Halves may run side by side: what this block has not done yet is not told by the other half. For
    // other blocks, that there are 2d + 1 banks must do.
    __syncthreads();
    if (warp == kCloseWarp) close(g, Kind::combine, Halves{sends, receives}, block, lane);
  }
  recorder.finish(crew.role());
  if constexpr (Traits::kNodes) count_worked(g, Kind::combine, receives);
}

using Kernel = void (*)(Parameter<CombineArgs>);

template <int kInput, int kCodec, bool kSingle>
constexpr Kernel general_kernel =
    combine_kernel<CombineTraits<kInput, kCodec, 1, kSingle, false, true, true>, true>;
template <int kSpan, bool kWeights, bool kManyRanks, bool kRecords>
constexpr Kernel common_kernel =
    combine_kernel<CombineTraits<2, 2, kSpan, false, true, kWeights, kManyRanks>, kRecords>;

template <int kSpan, bool kRecords>
Kernel common_kernel_for(const CombineArgs& a) {
  if (a.geometry.ranks > kRanksAtOnce) {
    return a.weights_given ? common_kernel<kSpan, true, true, kRecords>
                           : common_kernel<kSpan, false, true, kRecords>;
  }
  return a.weights_given ? common_kernel<kSpan, true, false, kRecords>
                         : common_kernel<kSpan, false, false, kRecords>;
}

/// Those of few tokens where there are other nodes, which sums are asked of, or not.
template <bool kManyRanks, bool kSums>
constexpr Kernel common_kernel_with_nodes =
    combine_kernel<CombineTraits<2, 2, 1, false, true, false, kManyRanks, true, kSums>, false>;

Kernel common_kernel_with_nodes_for(const CombineArgs& a) {
  if (a.geometry.ranks > kRanksAtOnce) {
    return a.by_node ? common_kernel_with_nodes<true, true> : common_kernel_with_nodes<true, false>;
  }
  return a.by_node ? common_kernel_with_nodes<false, true> : common_kernel_with_nodes<false, false>;
}

template <int kSpan>
constexpr int kSharedBytes =
    Rows<CombineTraits<2, 2, kSpan, false, true, true, true>>::kSharedBytes;

/// But for what is_common() says of other nodes.
bool is_plain(const CombineArgs& a) {
  const auto short_rows = [](const Grid& grid) {
    return grid.row_stride >= 0 && grid.row_stride <= std::numeric_limits<std::int32_t>::max();
  };
  return short_rows(a.y) && short_rows(a.out) && a.aligned && !a.refused && a.handle != nullptr &&
         !a.drop && !a.single && !a.plain_sum && a.row_weights == nullptr && a.extras == 0 &&
         a.surviving_weight == nullptr && a.weights_home == nullptr && a.y.slab_rows == 0 &&
         a.y_dtype == DType::bf16 && a.codec == DType::bf16 && a.out_dtype == DType::bf16;
}

bool has_common_kernel_with_nodes(const CombineArgs& a) {
  return is_plain(a) && a.halves.send && a.halves.receive && !a.many && !a.weights_given &&
         a.geometry.published != nullptr && a.geometry.recording.words == nullptr;
}

struct Choice {
  Kernel kernel;
  int step;  // elements, in the send half
  int shared_bytes = 0;
};
Choice choose(const CombineArgs& a) {
  if (is_common(a) && a.halves.send && a.halves.receive) {
    // Few tokens: small pieces for many warps. Many: not many more pieces than warps.
    const bool records = a.geometry.recording.words != nullptr;
    if (a.many) {
      return {records ? common_kernel_for<2, true>(a) : common_kernel_for<2, false>(a),
              2 * kStepElements, kSharedBytes<2>};
    }
    return {records ? common_kernel_for<1, true>(a) : common_kernel_for<1, false>(a), kStepElements,
            kSharedBytes<1>};
  }
  if (has_common_kernel_with_nodes(a)) {
    static_assert(kSharedBytes<1> >= static_cast<int>(kCarrierBytes));
    return {common_kernel_with_nodes_for(a), kStepElements, kSharedBytes<1>};
  }
  const bool wide = a.y_dtype == DType::f32;
  Kernel kernel = nullptr;
  if (a.codec == DType::f32) {
    kernel = a.single ? (wide ? general_kernel<4, 4, true> : general_kernel<2, 4, true>)
                      : (wide ? general_kernel<4, 4, false> : general_kernel<2, 4, false>);
  } else {
    kernel = a.single ? (wide ? general_kernel<4, 2, true> : general_kernel<2, 2, true>)
                      : (wide ? general_kernel<4, 2, false> : general_kernel<2, 2, false>);
  }
  return {kernel, kStepElements, static_cast<int>(kCarrierBytes)};
}

}  // namespace

bool is_common(const CombineArgs& a) {
  return is_plain(a) && a.geometry.published == nullptr;
}

Footprint choose_combine(CombineArgs& args) {
  const Choice choice = choose(args);
  const int hidden = args.geometry.hidden;
  args.steps_divisor = Divisor((hidden + choice.step - 1) / choice.step);
  args.taken_divisor = Divisor((hidden + kStepElements - 1) / kStepElements);
  return {reinterpret_cast<const void*>(choice.kernel),
          static_cast<std::size_t>(choice.shared_bytes)};
}

int launch_combine(const CombineArgs& args, const Footprint& chosen, const Launch& launch) {
  return launch_kernel(reinterpret_cast<Kernel>(const_cast<void*>(chosen.kernel)), launch,
                       chosen.shared_bytes, args);
}

int load_combine_kernels() {
  std::uint64_t any = 0;
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (int bits = 0; bits < 256; ++bits) {
        CombineArgs args;
        args.codec = codec;
        args.y_dtype = dtype;
        args.single = (bits & 1) != 0;
        args.aligned = (bits & 2) != 0;
        args.many = (bits & 4) != 0;
        args.weights_given = (bits & 8) != 0;
        args.geometry.recording.words = (bits & 16) != 0 ? &any : nullptr;
        args.geometry.ranks = (bits & 32) != 0 ? kPeersMax : 1;
        args.geometry.published = (bits & 64) != 0 ? reinterpret_cast<std::byte*>(&any) : nullptr;
        args.by_node = (bits & 128) != 0;
        args.handle = reinterpret_cast<const std::byte*>(&args);  // Any.
        const Choice choice = choose(args);
        const int error = load_kernel(choice.kernel, choice.shared_bytes);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace sluice::engine::cuda
