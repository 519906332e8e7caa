// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_send.cuh"
#include "engine/cuda/throughput.cuh"

/// combine in throughput mode: what it begins with.
namespace sluice::engine::cuda {

/// What all blocks of an operation know of it.
struct Call {
  window::HandleBrief brief;
  bool usable;  // The handle is this rank's, and the tensors fit it.
  std::uint32_t signature;
  InPlace own;  // Results of rank_major are partial sums as they lie: home may pull them.
  /// And each home knows by itself where they lie: behind its first row as many as it has sent records here before that one.
  bool numbered = false;

  __device__ __forceinline__ Call(const CombineArgs& a, const Desk& desk) {
    if (!a.refused) {
      brief = read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle));
    }
    usable = (brief.key == a.geometry.handle_key) & fits(a, brief);
    signature = mix(a.signature, brief.dispatch * 4 + brief.layout);
    // Also where only the receive half's tensors do not fit: peers have been told to pull.
    if (brief.key == a.geometry.handle_key && is_rank_major()) own = desk.own;
    const bool all_stored = brief.rows == static_cast<std::int64_t>(brief.records);
    numbered = (own.stride != 0) & usable & all_stored & (a.row_weights == nullptr);
  }
  __device__ __forceinline__ bool is_rank_major() const {
    return brief.layout == static_cast<std::uint32_t>(Layout::rank_major);
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

/// Whether weights that were given to this combine are sent to the ranks of their experts.
template <typename Traits>
__device__ __forceinline__ bool gives_weights(const Combine& c, const Call& call) {
  return call.usable && Traits::kWeights && !Traits::kSingle && c.a.weights_given && !c.a.plain_sum;
}

/// Whether there may be other nodes: kernels for common calls know of none (is_common()).
template <typename Traits>
inline constexpr bool kCounts = Traits::kNodes;

/// Parts of what other nodes are sent, for count_sent(): of weights, a token each; of answers, a record each. And what is
/// announced, with which both begin.
__device__ __forceinline__ std::uint32_t weight_parts(const Combine& c) {
  return 1U + static_cast<std::uint32_t>(min(c.a.tokens, c.a.weights_tokens));
}
__device__ __forceinline__ std::uint32_t answer_parts(const Call& call) {
  return 1U + (call.usable ? static_cast<std::uint32_t>(call.brief.records) : 0U);
}

/// Where the records of homes are in the handle: lane r knows of home r, and those behind the last of it.
struct Homes {
  int first = 0;
  int end = 0;

  /// Does not wait for what it asks for.
  __device__ __forceinline__ void ask(const Geometry& g, const HandleArrays& handle, int lane) {
    const std::int64_t* const at = handle.source_offsets() + min(lane, g.ranks - 1);
    first = static_cast<int>(load_now(at));
    end = static_cast<int>(load_now(at + 1));
  }
  /// Of this lane's.
  __device__ __forceinline__ int count() const { return end - first; }

  /// Where what is counted over all homes is: they come in turn, so that the tokens of all become complete one after the other.
  struct Turn {
    int number;
    int home;
  };
  static __device__ __forceinline__ Turn turn_of(const Geometry& g, int item) {
    const int number = quotient(item, g.ranks_divisor);
    const int home = g.rank + 1 + item - number * g.ranks;
    return {number, home >= g.ranks ? home - g.ranks : home};
  }
  /// Of the home that has most.
  __device__ __forceinline__ int most() const { return __reduce_max_sync(~0U, count()); }
};

/// Records whose rows home reads in place, one to a lane, as they are in the handle.
struct RecordsInPlace {
  static constexpr int kEach = 32;
  static constexpr int kRoutesAtOnce = 8;
  int first = 0;
  int count = 0;  // Lanes that have one.
  int home;
  int token;
  int rows[kRoutesAtOnce];  // Of the first routes.

  /// How many times kEach all homes have.
  static __device__ __forceinline__ int items(const Geometry& g, const Homes& homes) {
    return (homes.most() + kEach - 1) / kEach * g.ranks;
  }
  /// Asks for those of an item.
  __device__ __forceinline__ void ask(const Geometry& g, const HandleArrays& handle,
                                      const Homes& homes, int item, int lane) {
    const Homes::Turn turn = Homes::turn_of(g, item);
    first = __shfl_sync(~0U, homes.first, turn.home) + turn.number * kEach;
    count = min(__shfl_sync(~0U, homes.count(), turn.home) - turn.number * kEach, kEach);
    if (count <= 0) return;  // Other homes have more.
    home = load_now(handle.record_rank() + index(lane));
    token = load_now(handle.record_token() + index(lane));
    ask_rows(g, handle, 0, lane);
  }
  /// Asks for the rows of the routes from so many on.
  __device__ __forceinline__ void ask_rows(const Geometry& g, const HandleArrays& handle, int from,
                                           int lane) {
    const std::int32_t* const all = handle.route_rows() + index(lane) * g.top_k + from;
#pragma unroll
    for (int i = 0; i < kRoutesAtOnce; ++i) {
      rows[i] = from + i < g.top_k ? load_now(all + i) : Handle::kRowAbsent;
    }
  }
  __device__ __forceinline__ int index(int lane) const {
    return first + min(lane, count - 1);
  }
};

/// What a warp asks for before its block knows where it stands: the first answers leave as soon as it does, and peers wait for
/// them. One way to memory after the other, as many as the block has until then. Two steps, for the warp that opens the
/// block to do that between them.
struct Opening {
  Homes homes;
  std::uint32_t accepted = 0;  // Sources whose records count.
  Queue records;
  Queue tokens;
  RecordsInPlace in_place;  // The first.
  int token = -1;           // The first.
  int expert = -1;          // Of this lane's route.

  /// Asks for what depends on nothing.
  __device__ __forceinline__ Opening(const CombineArgs& a, const HandleArrays& handle,
                                     CombineNotes& notes, int lane)
      : records(&notes.next[CombineNotes::kRecords], lane),
        tokens(&notes.next[CombineNotes::kTokens], lane) {
    if (sends(a)) {
      records.ask_ahead();
      accepted = static_cast<std::uint32_t>(
          load_now(reinterpret_cast<const std::int32_t*>(&handle.header()->accepted)));
      homes.ask(a.geometry, handle, lane);
    }
    if (receives(a)) tokens.ask_ahead();
  }

  /// Asks for what that decides on.
  __device__ __forceinline__ void look_on(const CombineArgs& a, const HandleArrays& handle,
                                          const Call& call, int lane) {
    if (!call.usable) return;
    if (receives(a)) {
      tokens.open(a.tokens);
      token = tokens.take();
      expert = expert_of(a, handle, token, lane);
    }
    if (!sends(a) || call.own.stride == 0 || call.numbered) return;
    records.open(RecordsInPlace::items(a.geometry, homes));
    const int item = records.take();
    if (item >= 0) in_place.ask(a.geometry, handle, homes, item, lane);
  }

  static __device__ __forceinline__ bool sends(const CombineArgs& a) {
    return a.halves.send && !a.refused;
  }
  static __device__ __forceinline__ bool receives(const CombineArgs& a) {
    return a.halves.receive && !a.refused && !a.drop;
  }
  /// Asks for the experts of a token, a route to a lane.
  static __device__ __forceinline__ int expert_of(const CombineArgs& a, const HandleArrays& handle,
                                                  int token, int lane) {
    const int top_k = a.geometry.top_k;
    if (token < 0 || lane >= top_k) return -1;
    return load_now(handle.topk_ids() + token * top_k + lane);
  }
  /// Asks for the numbers of its records, a rank to a lane: of any handle, but of use only where rows lie by them.
  static __device__ __forceinline__ int number_of(const CombineArgs& a, const HandleArrays& handle,
                                                  int token, int lane) {
    const int ranks = a.geometry.ranks;
    if (token < 0 || lane >= ranks) return 0;
    return load_now(handle.record_numbers() + token * ranks + lane);
  }
};

/// Tells the peers, before anything else, what they will get of this rank, and where rows lie that they pull. By one warp of the
/// launch's first block, which starts before all others, behind a fence_system(): what kernels before this one have written, and so
/// all that is read in place, comes before the cell. Pairs with Sources::look() and await_weight().
template <typename Traits>
__device__ __forceinline__ void announce(const Combine& c, const Call& call, const Opening& opening,
                                         CombineNotes& notes, int lane) {
  const Geometry& g = c.g;
  const int row_bytes = g.hidden * (Traits::codec(c.a) == DType::f32 ? 4 : 2);
  const int sum_bytes = Traits::kSingle ? 0 : row_bytes;  // Of `single`, rows are counted apart.
  const bool weights = gives_weights<Traits>(c, call);
  std::uint32_t form = static_cast<std::uint32_t>(row_bytes) / window::kPacketBytes;
  if (Traits::kSingle) form |= window::kRowPerRoute;
  if (weights) form |= window::kWeightsBefore;
  if (!Traits::kCommon) form |= form_by_node(c.a);
  std::uint32_t word = cell_word::kRefused;
  std::uint32_t tokens = 0;
  std::int64_t bytes = 0;
  InPlace own = call.own;
  if (call.numbered) {
    tokens = throughput_word::kNumbered;
    own.offset += static_cast<std::uint64_t>(opening.homes.first) * own.stride;
  }
  // Unless a handle contradicts itself.
  const bool has_rows = !call.numbered || opening.homes.end <= call.brief.rows;
  if (call.usable && lane < g.ranks) {
    word = cell_word::kNothing;
    if (((opening.accepted >> lane) & 1U) != 0 && has_rows) {
      word = static_cast<std::uint32_t>(opening.homes.count());
      if (lane != g.rank) {
        int each = (call.numbered ? 0 : static_cast<int>(window::kPacketBytes)) + sum_bytes;
        if (c.a.row_weights != nullptr) each += g.layout.weight_packets() * 16;
        bytes = std::int64_t{word} * each + 16;
      }
      if (gives_sums<Traits>(c, lane)) {  // As one of its node: not by itself.
        word = cell_word::kNothing;
        tokens = answered_tokens(c.handle, lane);
      }
    }
  }
  publish_fenced(g, protocol::CellKind::combine, c.bank, c.tag, word, c.signature, tokens, own,
                 form, c.block.suspects, lane);
  if (bytes != 0) count_bytes(g, protocol::Kind::combine, bytes);
  if constexpr (kCounts<Traits>) {
    __syncwarp();
    if (lane != 0) return;
    const std::uint64_t epoch = c.block.sent.epoch + 1;
    if (weights) {
      count_sent(g, protocol::CellKind::weights, epoch, &notes.sent[0], 1, weight_parts(c));
    }
    count_sent(g, protocol::CellKind::combine, epoch, &notes.sent[1], 1, answer_parts(call));
  }
}

}  // namespace sluice::engine::cuda
