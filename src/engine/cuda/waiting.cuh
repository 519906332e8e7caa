// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"

/// How kernels wait.
namespace sluice::engine::cuda {

/// Whether to give up `peer`: it is suspected, or gone, or `over` (then it becomes a suspect).
__device__ __noinline__ inline bool give_up_peer(const Geometry* g, int peer, bool over,
                                                 bool ask_host) {
  const std::uint32_t bit = 1U << peer;
  if ((*const_cast<const volatile std::uint32_t*>(&g->state->suspects) & bit) != 0) return true;
  if (ask_host && !over) {
    over = (*const_cast<const volatile std::uint32_t*>(&g->board->gone) & bit) != 0;
  }
  if (!over) return false;
  atomicOr(&g->state->suspects, bit);
  atomicOr_system(&g->board->suspects, bit);
  return true;
}

/// One warp's patience during one operation. Every wait asks it between two polls.
class Patience {
 public:
  __device__ Patience(const Geometry& geometry, std::uint64_t timeout_ns)
      : geometry_(&geometry), timeout_ns_(timeout_ns) {}

  /// Counts a poll. Whether it is time to look up.
  __device__ __forceinline__ bool weary() { return ++polls_ % kPollsPerLook == 0; }
  /// Looks up: whether to give up `peer`.
  __device__ __forceinline__ bool look(int peer) {
    const std::uint64_t now = now_ns();
    if (start_ == 0) start_ = now;
    return give_up_peer(geometry_, peer, timeout_ns_ != 0 && now - start_ > timeout_ns_,
                        polls_ % (kPollsPerLook * kLooksPerCall) == 0);
  }
  __device__ __forceinline__ bool spent(int peer) { return weary() && look(peer); }

 private:
  static constexpr unsigned kPollsPerLook = 64;
  /// The host's memory is far away.
  static constexpr unsigned kLooksPerCall = 64;

  const Geometry* geometry_;
  std::uint64_t timeout_ns_;
  std::uint64_t start_ = 0;
  unsigned polls_ = 0;
};

}  // namespace sluice::engine::cuda
