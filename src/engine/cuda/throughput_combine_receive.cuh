// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_receive.cuh"
#include "engine/cuda/throughput_combine_send.cuh"

/// combine in throughput mode, receive half: a token is summed by one warp once the answers of its ranks have come or, where rows
/// lie by their numbers, their cells. A rank that is given up costs the tokens of which these are not there then: every warp
/// decides of its own.
namespace sluice::engine::cuda {

/// What the peers have announced: lane r knows of rank r.
template <typename Traits>
class Sources {
 public:
  __device__ __forceinline__ Sources(const Combine& c, const Desk& desk, int lane)
      : heap_(desk.heaps[min(lane, c.g.ranks - 1)]), known_(lane >= c.g.ranks) {
    if constexpr (!Traits::kCommon) sums_ = ::sluice::engine::cuda::gives_sums<Traits>(c, lane);
  }

  /// Once more, if it is not known yet. Acquires what was announced: rows that lie there.
  __device__ __forceinline__ void look(const Combine& c, int lane) {
    if (known_) return;
    Arrival arrival;
    known_ = read_cell<true>(in_at(c.g, lane, c.g.layout.cell(protocol::CellKind::combine, c.bank)),
                             c.tag, c.signature, arrival);
    if constexpr (!Traits::kCommon) {
      if (sums_) {  // Whatever this one does itself.
        const std::uint32_t form = c.g.layout.cell(protocol::CellKind::combine, c.bank) +
                                   window::kFormPacket * std::uint32_t{window::kPacketBytes};
        gives_ = (load_packet(in_at(c.g, lane, form)).z & window::kByNode) != 0;
        return;
      }
    }
    gives_ = arrival.records != 0;
    stride_ = arrival.rows.stride;
    heap_ += arrival.rows.offset;
    if (arrival.staging) numbers_ = static_cast<std::uint32_t>(arrival.records);
  }
  /// Whether it gives sums of its node, if it gives any.
  __device__ __forceinline__ bool gives_sums() const { return sums_; }
  /// Whether an answer of this lane's rank may be awaited.
  __device__ __forceinline__ bool may_answer() const { return !known_ || gives_; }
  __device__ __forceinline__ bool gives() const { return known_ && gives_; }
  __device__ __forceinline__ bool is_pulled() const { return gives() && stride_ != 0; }
  /// Whether there is no answer to await: its rows lie by the numbers of their records.
  __device__ __forceinline__ bool is_numbered() const { return numbers_ != 0; }
  /// What it would answer of the record with a number. Another's handle may say anything.
  __device__ __forceinline__ uint4 answer_of(const Combine& c, int number) const {
    const auto row = static_cast<std::uint32_t>(number);
    return make_uint4(c.tag, row < numbers_ ? ~0U : 0U, c.signature, row);
  }
  /// In place.
  __device__ __forceinline__ const std::byte* row(std::uint32_t number) const {
    return heap_ + number * std::uint64_t{stride_};
  }

 private:
  const std::byte* heap_;  // Then: of the first row.
  std::uint32_t stride_ = 0;
  std::uint32_t numbers_ = 0;  // As many rows lie by their numbers.
  bool known_;
  bool gives_ = false;
  bool sums_ = false;
};

/// The partial sums of a token, of the ranks that have given theirs. Notes in `home` what was answered.
template <typename Traits>
struct PartialSums {
  std::uint32_t ranks;
  const std::byte* own;  // Lane r: where that of rank r lies, here or, in place, there.

  __device__ __forceinline__ PartialSums(const Combine& c, const Sources<Traits>& sources,
                                         HomeToken& home, std::uint32_t asked, uint4 answer,
                                         int token, int lane) {
    const bool given = ((asked >> lane) & 1U) != 0 && answer.x == c.tag &&
                       answer.z == c.signature && answer.y != 0;
    const std::uint32_t answered = given ? answer.y : 0;
    const std::uint32_t by_owner = __shfl_sync(~0U, answered, home.owner & 31);
    home.answered = lanes_with(home.owner >= 0 && ((by_owner >> lane) & 1U) != 0);
    ranks = lanes_with(given);
    const std::uint32_t row = c.g.layout.combine_row(c.bank, c.slot(token, 0));
    const int giver = min(lane, c.g.ranks - 1);
    own = in_at(c.g, 0, row) + c.g.layout.lane(giver);
    if constexpr (!Traits::kCommon) own = answer_in<Traits>(c, giver, row);
    if (given && sources.is_pulled()) own = sources.row(answer.w);
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
                                          const PartialSums<Traits>& sums, int token, int steps,
                                          int lane) {
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

/// The same with `reduce = node`: the sums of nodes, ascending, of which this rank forms that of its own.
template <typename Traits>
__device__ __forceinline__ void sum_nodes(const Combine& c, const HomeToken& home,
                                          const PartialSums<Traits>& sums, int token, int steps,
                                          int lane) {
  const NodeTable& nodes = c.g.state->nodes;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[Traits::kSpan][kLaneElements] = {};
    const int element = step * Traits::kStep + lane * kLaneElements;
    const int byte = within(element, c.g.hidden) * Traits::Output::kElementBytes;
    const auto add = [&](int giver, float(&to)[Traits::kSpan][kLaneElements]) {
      typename Traits::Output packets;
      packets.take(pointer_of(const_cast<std::byte*>(sums.own), giver) + byte, element, c.g.hidden);
      add_packets<Traits>(c, packets, to);
    };
#pragma unroll 1
    for (int node = 0; node < nodes.nodes; ++node) {
      const int giver = nodes.giver[node];
      if (giver != c.g.rank) {
        if (((sums.ranks >> giver) & 1U) != 0) add(giver, sum);
        continue;
      }
      float own[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
      for (std::uint32_t left = sums.ranks & nodes.near; left != 0; left &= left - 1) {
        add(__ffs(static_cast<int>(left)) - 1, own);
      }
      round_node<Traits>(c.a, own);
#pragma unroll
      for (int j = 0; j < Traits::kSpan; ++j) {
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) sum[j][e] = sum[j][e] + own[j][e];
      }
    }
    finish_token<Traits>(c, home, token, step, sum, lane);
  }
}

/// The same by way of shared memory.
template <typename Traits>
__device__ __forceinline__ void sum_by_ring(const Combine& c, const HomeToken& home,
                                            const PartialSums<Traits>& sums, int token, int steps,
                                            SharedAt slots, int lane) {
  RowsFeed<typename Traits::Output> pieces(slots, sums.own, sums.ranks, c.g.hidden, lane);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[Traits::kSpan][kLaneElements] = {};
#pragma unroll 1
    for (std::uint32_t left = sums.ranks; left != 0; left &= left - 1) {
      add_packets<Traits>(c, pieces.take(), sum);
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
template <typename Traits>
__device__ __forceinline__ void bring_weights_home(const Combine& c, const HomeToken& home,
                                                   std::uint32_t ranks, int token, int lane) {
  if (lane >= c.g.top_k) return;
  const int owner = max(home.owner, 0);
  const uint4 v = load_packet(answer_in<Traits>(c, owner, c.g.layout.row_weight(c.bank, token)) +
                              lane / window::kPacketWeights * 16);
  const bool come = home.owner >= 0 && ((ranks >> owner) & 1U) != 0 && v.x == c.tag;
  c.a.weights_home[token * c.a.weights_home_stride[0] + lane * c.a.weights_home_stride[1]] =
      come ? weight_in(v, lane) : 0.0F;
}

/// Sums a token over `ranks`, as their answers have it, which were acquired. Returns how many of its routes are lost.
/// add(sums, steps): adds them, piece by piece; not called with `single`.
template <typename Traits, typename Add>
__device__ __forceinline__ int sum_token(const Combine& c, const Sources<Traits>& sources,
                                         HomeToken& home, std::uint32_t ranks, uint4 answer,
                                         int token, int lane, const Add& add) {
  const int steps = static_cast<int>(c.a.taken_divisor.divisor);
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
    const PartialSums<Traits> sums(c, sources, home, ranks, answer, token, lane);
    if (!Traits::kCommon && c.a.by_node) {
      if constexpr (!Traits::kCommon) sum_nodes<Traits>(c, home, sums, token, steps, lane);
    } else {
      add(sums, steps);
    }
  }
  if (!Traits::kCommon && c.a.weights_home != nullptr) {
    const bool come = answer.x == c.tag && answer.z == c.signature;
    bring_weights_home<Traits>(c, home, ranks & lanes_with(come), token, lane);
  }
  return __popc(home.expected & ~home.answered);
}

/// What a warp does of the receive half: it has a token, and sums it once that can be done.
template <typename Traits>
class Summer {
 public:
  /// by_ring: whether rows can go through it.
  __device__ __forceinline__ Summer(const Combine& c, const Desk& desk, const Opening& opening,
                                    SharedAt slots, bool by_ring, int lane)
      : c_(c),
        notes_(*desk.combine_notes),
        slots_(slots),
        by_ring_(by_ring),
        sources_(c, desk, lane),
        gone_(((c.block.suspects >> lane) & 1U) != 0),
        lane_(lane),
        queue_(opening.tokens),
        next_(opening.token),
        next_expert_(opening.expert) {}

  /// Goes to the next token.
  __device__ __forceinline__ void claim() {
    token_ = next_;
    if (token_ < 0) return;
    expert_ = next_expert_;
    next_ = queue_.take();
    ask();
  }
  __device__ __forceinline__ bool has_token() const { return token_ >= 0; }

  /// Asks what has come by now for the token, to be looked at later.
  __device__ __forceinline__ void ask() {
    sources_.look(c_, lane_);
    // Pairs with Answers::post() of the peer.
    if (lane_ < c_.g.ranks && !sources_.is_numbered()) {
      answer_ =
          load_packet_acquire(answer_in<Traits>(c_, lane_, c_.g.layout.answer(c_.bank, token_)));
      if constexpr (!Traits::kCommon) {
        if (sources_.gives_sums() && !summed_ && answer_.x != c_.tag) {
          const Given given = ask_giver<kFormWordOfThroughput>(c_, lane_, token_);
          answer_ = given.answer;
          summed_ = given.none && sources_.gives();
        }
      }
    }
  }
  /// Whether all that the token needs was there when it was asked for, or will not come.
  __device__ __forceinline__ bool is_ready() const {
    return !__any_sync(~0U, lacks(asked_ranks()) && !gone_);
  }
  /// Waits for it.
  __device__ __forceinline__ void await() {
    std::uint64_t began = 0;
    Patience patience(c_.g, c_.a.timeout_ns, began);
    WaitClock wait;
    for (ask(); !is_ready(); ask()) {
      const bool lacking = lacks(asked_ranks()) && !gone_;
      if (lacking) wait.poll();
      if (patience.weary() && lacking) gone_ = patience.look(lane_);
    }
    const std::uint64_t waited = wait.ns();
    if (waited != 0) atomicMax(&notes_.waited_ns[lane_], static_cast<unsigned long long>(waited));
    __syncwarp();
  }
  /// And claims the next.
  __device__ __forceinline__ void sum() {
    __syncwarp();  // What came before the answers is seen by this warp.
    const bool numbered = sources_.is_numbered();
    int number = 0;
    if (numbered) number = Opening::number_of(c_.a, c_.handle, token_, lane_);
    std::uint32_t ranks = 0;
    HomeToken home = token_of(c_, expert_, ranks);
    ask_givers<Traits>(c_, home, ranks);
    if (lacks(ranks)) atomicOr(&notes_.missing, 1U << lane_);
    ranks &= lanes_with(sources_.gives());
    const int token = token_;
    next_expert_ = Opening::expert_of(c_.a, c_.handle, next_, lane_);
    const auto add = [&](const PartialSums<Traits>& sums, int steps) {
      if (by_ring_) {
        sum_by_ring<Traits>(c_, home, sums, token, steps, slots_, lane_);
      } else {
        sum_ranks<Traits>(c_, home, sums, token, steps, lane_);
      }
    };
    const uint4 answer = numbered ? sources_.answer_of(c_, number) : answer_;
    lost_ += sum_token<Traits>(c_, sources_, home, ranks, answer, token, lane_, add);
    claim();
  }
  /// After the last.
  __device__ __forceinline__ void finish() {
    if (lane_ == 0 && lost_ != 0) {
      atomicAdd(&notes_.lost_routes, static_cast<unsigned long long>(lost_));
    }
  }

 private:
  /// The ranks that the token went to.
  __device__ __forceinline__ std::uint32_t asked_ranks() const {
    std::uint32_t ranks = 0;
    HomeToken home = token_of(c_, expert_, ranks);
    ask_givers<Traits>(c_, home, ranks);
    return ranks;
  }
  /// Or will have none.
  __device__ __forceinline__ bool has_answer() const {
    if (sources_.is_numbered()) return true;
    if constexpr (!Traits::kCommon) {
      if (summed_) return true;
    }
    return answer_.x == c_.tag;
  }
  /// Of a rank, by its lane.
  __device__ __forceinline__ bool lacks(std::uint32_t ranks) const {
    return ((ranks >> lane_) & 1U) != 0 && sources_.may_answer() &&
           (!has_answer() || (!sources_.gives() && !mutant(KernelMutant::rows_before_cell)));
  }
  const Combine& c_;
  CombineNotes& notes_;
  SharedAt slots_;
  bool by_ring_;
  Sources<Traits> sources_;
  bool gone_;  // This lane's rank: it is not waited for.
  int lane_;
  Queue queue_;
  int token_ = -1;
  int expert_ = -1;  // Of this lane's route.
  int next_;         // The token after it.
  int next_expert_;
  uint4 answer_{};       // Of this lane's rank.
  bool summed_ = false;  // Of its node nothing more comes.
  int lost_ = 0;
};

/// Rows that were pulled of ranks that had given this one up may be anything: all is summed again without them. By a whole
/// block, after all others have done. given: by those that remain. Rare.
template <typename Traits>
__device__ __noinline__ void sum_again(const CombineArgs* args, const Desk* desk,
                                       const Block* block, std::uint32_t given) {
  const CombineArgs& a = *args;
  const Call call(a, *desk);
  const Combine c = combine_of(a, call, *block, block->received);
  const int lane = static_cast<int>(threadIdx.x % 32);
  Sources<Traits> sources(c, *desk, lane);
  sources.look(c, lane);
  if (threadIdx.x == 0) desk->combine_notes->lost_routes = 0;
  fence_system();
  __syncthreads();
  int lost = 0;
#pragma unroll 1
  for (int token = static_cast<int>(threadIdx.x / 32); token < a.tokens; token += kBlockWarps) {
    std::uint32_t ranks = 0;
    HomeToken home = read_token(c, token, lane, ranks);
    ask_givers<Traits>(c, home, ranks);
    ranks &= given;
    const bool asked = ((ranks >> lane) & 1U) != 0;
    uint4 answer = load_packet(
        answer_in<Traits>(c, asked ? lane : c.g.rank, c.g.layout.answer(c.bank, token)));
    if (sources.is_numbered()) {
      answer = sources.answer_of(c, Opening::number_of(a, c.handle, token, lane));
    }
    fence_system();
    __syncwarp();
    lost += sum_token<Traits>(c, sources, home, ranks, answer, token, lane,
                              [&](const PartialSums<Traits>& sums, int steps) {
                                sum_ranks<Traits>(c, home, sums, token, steps, lane);
                              });
  }
  if (lane == 0 && lost != 0) {
    atomicAdd(&desk->combine_notes->lost_routes, static_cast<unsigned long long>(lost));
  }
  __syncthreads();
}

/// Says what the receive half came to. By one warp of the last block.
__device__ __forceinline__ void say_what_came(const CombineArgs& a, const CombineNotes& notes,
                                              int lane) {
  const Geometry& g = a.geometry;
  if (lane < g.ranks) count_wait(g, lane, notes.waited_ns[lane]);
  if (lane != 0) return;
  if ((notes.missing | notes.refused | notes.mismatched) != 0 || notes.lost_routes != 0) {
    add_totals(&g, protocol::Kind::combine, {static_cast<std::uint32_t>(notes.lost_routes), 0, 0},
               {notes.missing, notes.refused, notes.mismatched});
  }
  if (a.report == nullptr) return;
  Report report;
  report.missing.words[0] = notes.missing;
  report.refused.words[0] = notes.refused;
  report.mismatched.words[0] = notes.mismatched;
  report.lost_routes = static_cast<std::int64_t>(notes.lost_routes);
  *a.report = report;
}

/// Some peer has given this rank up, perhaps while it read that one's rows: sums again without them. By the last block. Rare.
template <typename Traits>
__device__ __forceinline__ void mend_sums(const CombineArgs& a, const Desk& desk,
                                          const Block& block, const Combine& c, bool sums,
                                          const Seat& seat) {
  const Geometry& g = a.geometry;
  const int lane = seat.lane;
  CombineNotes& notes = *desk.combine_notes;
  __shared__ std::uint32_t accusers;
  __shared__ std::uint32_t others;
  std::uint32_t summed_without = 0;
  // As long as it takes to sum again, somebody may give this rank up.
#pragma unroll 1
  for (;;) {
    if (seat.warp == 0) {
      // Of whom nothing was pulled may accuse: what it pushed stays as it is.
      Sources<Traits> sources(c, desk, lane);
      if (sums && !Traits::kSingle) sources.look(c, lane);
      const std::uint32_t accused =
          lanes_with(sources.is_pulled() && lane != g.rank && is_accused(g, lane));
      const std::uint32_t given = lanes_with(sources.gives());
      if (lane == 0) {
        accusers = accused;
        others = given & ~(accused | notes.missing);  // Who was given up may have come since.
      }
    }
    __syncthreads();
    const std::uint32_t without = accusers;
    if (without == summed_without) break;
    sum_again<Traits>(&a, &desk, &block, others);
    summed_without = without;
  }
  if (threadIdx.x != 0 || summed_without == 0) return;
  notes.missing |= summed_without;
  suspect(g, summed_without);
}

}  // namespace sluice::engine::cuda
