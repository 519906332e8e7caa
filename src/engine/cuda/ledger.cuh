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

/// Whether a combine has a report that can be added to: the herald begins it before it waits for anything.
static __device__ __noinline__ bool await_report(const CombineArgs* a, std::uint32_t tag,
                                                 int bank) {
  if (a->report == nullptr) return false;
  std::uint64_t began = 0;
  Patience patience(a->geometry, a->timeout_ns, began);
  while (load_acquire(&a->geometry.state->reported[bank]) != tag) {
    if (patience.spent(a->geometry.rank)) return false;
  }
  return true;
}

/// Counts routes of a token of a combine that no answer came for. By one thread, any number of times: what was counted
/// of the token by anybody before is not counted again. reported: what await_report() said.
static __device__ __noinline__ void report_lost(const CombineArgs* a, std::uint32_t tag, int bank,
                                                int token, int routes, bool reported) {
  const Geometry& g = a->geometry;
  unsigned long long* const known = &g.state->lost_of_token[bank][token];
  const auto next =
      static_cast<unsigned long long>(tag) << 32 | static_cast<unsigned long long>(routes);
  unsigned long long old = *const_cast<volatile unsigned long long*>(known);
  for (;;) {
    if (old >> 32 == tag && old >= next) return;
    const unsigned long long seen = atomicCAS(known, old, next);
    if (seen == old) break;
    old = seen;
  }
  const int before = old >> 32 == tag ? static_cast<int>(old & 0xFFFFFFFFU) : 0;
  const int more = routes - before;
  add_totals(&g, protocol::Kind::combine, {static_cast<std::uint32_t>(more), 0, 0}, {});
  if (!reported) return;
  const Locked locked(&g.state->lock);
  g.state->lost_routes[bank] += more;
  store_for_host(&a->report->lost_routes, g.state->lost_routes[bank]);
}

/// Notes peers that a combine has not heard of. By one thread.
static __device__ __noinline__ void report_missing(const CombineArgs* a, std::uint32_t peers,
                                                   bool reported) {
  if (peers == 0) return;
  add_totals(&a->geometry, protocol::Kind::combine, {}, {peers, 0, 0});
  if (!reported) return;
  const Locked locked(&a->geometry.state->lock);
  auto& missing = a->report->missing.words[0];
  store_for_host(&missing, missing | peers);
}

}  // namespace sluice::engine::cuda
