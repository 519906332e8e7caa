// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"

/// How kernels wait.
namespace sluice::engine::cuda {

/// Whether `peer` has been waited for, for `waited` nanoseconds, longer than it gets: `timeout_ns`, and as much again from
/// every sign of life on, but as often as there are ranks at most (docs/protocol.md, "One silent rank").
__device__ __forceinline__ bool is_overdue(const Geometry& g, int peer, std::int64_t waited,
                                           std::uint64_t timeout_ns) {
  const auto limit = static_cast<std::int64_t>(timeout_ns);
  if (limit == 0 || waited <= limit) return false;
  // This rank's own data is late where the rank itself waits for a peer, which is given up first.
  if (peer == g.rank) return waited > limit * (g.ranks + 1);
  // Pairs with the store of Watch::listen().
  const std::uint32_t silent_ms =
      *const_cast<const volatile std::uint32_t*>(&g.board->silent_ms[peer]);
  if (waited > limit * g.ranks && !mutant(KernelMutant::patience_without_end)) return true;
  return silent_ms * std::int64_t{1'000'000} > limit;
}

/// The peers that are given up by now.
__device__ __forceinline__ std::uint32_t suspects_by_now(const Geometry& g) {
  return *const_cast<const volatile std::uint32_t*>(&g.state->suspects);
}

/// Gives up `peers`. Who sees it, and leaves something out for it, publishes later, behind a fence: the host knows it by then.
__device__ __forceinline__ void suspect(const Geometry& g, std::uint32_t peers) {
  if (g.published != nullptr) {
#pragma unroll 1
    for (std::uint32_t left = peers; left != 0; left &= left - 1) {
      const int peer = __ffs(static_cast<int>(left)) - 1;
      // Pairs with LaneView::suspects().
      *const_cast<volatile std::uint8_t*>(&g.board->suspected[peer]) = 1;
    }
    fence_system();
  }
  atomicOr(&g.state->suspects, peers);
}

/// When a wait began, as look_up() has it: in its lowest bits, for which time is too fine, the peer that was gone when it was
/// looked up last, plus 1.
namespace wait_since {
inline constexpr std::uint64_t kGone = 31;
static_assert(kPeersMax < kGone);

__device__ __forceinline__ std::uint64_t of(std::uint64_t begin, int gone) {
  return (begin & ~kGone) | static_cast<std::uint64_t>(gone + 1);
}
}  // namespace wait_since

/// Looks whether to give up `peer`: it is suspected, or gone, or the time is over that began at
/// `start` (then it becomes a suspect). Returns 0 if so, or else when the wait began: now, if `start`
/// is 0. One that is gone may have sent all just before its end, after the last poll: it is given up by who finds it gone
/// again, after more polls.
__device__ __noinline__ inline std::uint64_t look_up(const Geometry* g, int peer,
                                                     std::uint64_t start,
                                                     std::uint64_t timeout_ns) {
  about_to_look(peer);
  const std::uint64_t now = now_ns();
  const std::uint64_t gone_before = start & wait_since::kGone;
  start &= ~wait_since::kGone;
  if (start == 0) start = now & ~wait_since::kGone;
  const std::uint32_t bit = 1U << peer;
  if ((*const_cast<const volatile std::uint32_t*>(&g->state->suspects) & bit) != 0) return 0;
  // Pairs with the load of Watch::run().
  if (!mutant(KernelMutant::silence_taken_for_death)) {
    *const_cast<volatile std::uint64_t*>(&g->board->waits) = now;
  }
  // Pairs with the store of Watch::run().
  const bool gone = (load_acquire(&g->board->gone) & bit) != 0;
  if (gone && gone_before != wait_since::of(0, peer) && !mutant(KernelMutant::end_taken_for_all)) {
    return wait_since::of(start, peer);
  }
  // Signed: another warp may have begun, by a clock that is a step ahead.
  if (!gone && !is_overdue(*g, peer, static_cast<std::int64_t>(now - start), timeout_ns)) {
    return start;
  }
  // A rank that waited for itself was late, as a whole; it goes on sending to itself.
  if (peer != g->rank) {
    suspect(*g, *const_cast<const volatile std::uint32_t*>(&g->board->falls_with[peer]));
  }
  return 0;
}

/// How often one warp has polled during one operation, for those who look elsewhere when they are weary.
class Polls {
 public:
  Polls() = default;
  /// weary: as if it had been.
  __device__ __forceinline__ explicit Polls(bool weary) : polls_(weary ? kPollsPerLook : 0) {}

  /// Counts a poll. Whether it is time to look up.
  __device__ __forceinline__ bool weary() { return ++polls_ % kPollsPerLook == 0; }
  /// Whether it has ever been.
  __device__ __forceinline__ bool was_weary() const { return polls_ >= kPollsPerLook; }
  /// As if it had been, and were about to be again.
  __device__ __forceinline__ void remember() { polls_ = kPollsPerLook * 2 - 1; }
  /// After lanes have waited each for itself: as often as the one that did most. By one warp.
  __device__ __forceinline__ void agree() { polls_ = __reduce_max_sync(~0U, polls_); }

 private:
  unsigned polls_ = 0;
};

/// How long somebody waited, for Statistics: nothing if it was short.
class WaitClock {
 public:
  /// Counts a poll that found nothing.
  __device__ __forceinline__ void poll() {
    if (++polls_ == kPollsCounted) since_ = now_ns();
  }
  __device__ __forceinline__ std::uint64_t ns() const {
    return since_ == 0 ? 0 : now_ns() - since_;
  }

 private:
  unsigned polls_ = 0;
  std::uint64_t since_ = 0;
};

/// One warp's patience during one operation. Every wait asks it between two polls. Where the lanes of a warp
/// vote on what they wait for, they must have polled equally often.
class Patience {
 public:
  /// began: 0; later when the wait began. It is not a member: where only those who look need it, it can lie in memory
  /// rather than in registers that all who wait need (combine_verdict.cuh).
  __device__ Patience(const Geometry& geometry, std::uint64_t timeout_ns, std::uint64_t& began)
      : geometry_(&geometry), timeout_ns_(timeout_ns), began_(&began) {}

  __device__ __forceinline__ bool weary() { return polls_.weary(); }
  __device__ __forceinline__ bool was_weary() const { return polls_.was_weary(); }
  /// That another's, who went on with this wait, was.
  __device__ __forceinline__ void remember() { polls_.remember(); }
  /// For those who look by themselves.
  __device__ __forceinline__ std::uint64_t* began() { return began_; }
  /// Looks up: whether to give up `peer`.
  __device__ __forceinline__ bool look(int peer) {
    const std::uint64_t began = look_up(geometry_, peer, *began_, timeout_ns_);
    if (began == 0) return true;
    *began_ = began;
    return false;
  }
  __device__ __forceinline__ bool spent(int peer) { return weary() && look(peer); }

 private:
  const Geometry* geometry_;
  std::uint64_t timeout_ns_;
  std::uint64_t* began_;
  Polls polls_;
};

/// Waits for one packet of `peer` and empties it.
__device__ __forceinline__ void drain_packet(std::byte* at, int peer, Patience& patience) {
  while (load_packet(at).w == window::kPoison) {
    if (patience.spent(peer)) return;
  }
  clear_packet(at);
}

}  // namespace sluice::engine::cuda
