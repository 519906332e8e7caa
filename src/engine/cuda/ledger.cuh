// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/operation.cuh"

/// What happened, summed in GPU memory under a lock, since this is rare and a GPU's atomics do not work
/// on host memory everywhere. The board and a caller's report get the sums as they are then.
namespace sluice::engine::cuda {

/// Held by one thread of a GPU; another of its warp must not want it at the same time.
class Locked {
 public:
  __device__ explicit Locked(std::uint32_t* lock) : lock_(lock) {
    while (atomicCAS(lock_, 0U, 1U) != 0) {
    }
    __threadfence();  // Pairs with that of the holder before.
  }
  __device__ ~Locked() {
    __threadfence();
    atomicExch(lock_, 0U);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  std::uint32_t* lock_;
};

template <typename T>
__device__ __forceinline__ void store_for_host(T* at, T value) {
  *const_cast<volatile T*>(at) = value;
}

/// What is added; by value, so that it stays in registers.
struct Sums {
  std::uint32_t lost_routes = 0;
  std::uint32_t bad_routes = 0;
  std::uint32_t overflow_rows = 0;
};
struct Sets {
  std::uint32_t missing = 0;
  std::uint32_t refused = 0;
  std::uint32_t mismatched = 0;
};

/// Adds to the totals of a kind. By one thread.
static __device__ __noinline__ void add_totals(const Geometry* g, protocol::Kind kind, Sums more,
                                               Sets sets) {
  const Locked locked(&g->state->lock);
  Totals& sum = g->state->totals[static_cast<int>(kind)];
  Totals& seen = g->board->totals[static_cast<int>(kind)];
  sum.lost_routes += more.lost_routes;
  sum.bad_routes += more.bad_routes;
  sum.overflow_rows += more.overflow_rows;
  sum.missing |= sets.missing;
  sum.refused |= sets.refused;
  sum.mismatched |= sets.mismatched;
  store_for_host(&seen.lost_routes, sum.lost_routes);
  store_for_host(&seen.bad_routes, sum.bad_routes);
  store_for_host(&seen.overflow_rows, sum.overflow_rows);
  store_for_host(&seen.missing, sum.missing);
  store_for_host(&seen.refused, sum.refused);
  store_for_host(&seen.mismatched, sum.mismatched);
}

/// Begins the report of a combine, by the thread that goes on with it.
static __device__ __noinline__ void begin_report(const Geometry* g, Report* report, int bank,
                                                 std::uint32_t tag) {
  *report = Report();
  g->state->lost_routes[bank] = 0;
  store_release(&g->state->reported[bank], tag);  // Pairs with report_lost().
}

/// Counts routes of a combine that no answer came for. By one thread.
static __device__ __noinline__ void report_lost(const CombineArgs* a, std::uint32_t tag, int bank,
                                                int routes) {
  const Geometry& g = a->geometry;
  add_totals(&g, protocol::Kind::combine, {static_cast<std::uint32_t>(routes), 0, 0}, {});
  if (a->report == nullptr) return;
  // Until the herald has begun it, which it does before it waits for anything.
  Patience patience(g, a->timeout_ns);
  while (load_acquire(&g.state->reported[bank]) != tag) {
    if (patience.spent(g.rank)) return;
  }
  const Locked locked(&g.state->lock);
  g.state->lost_routes[bank] += routes;
  store_for_host(&a->report->lost_routes, g.state->lost_routes[bank]);
}

}  // namespace sluice::engine::cuda
