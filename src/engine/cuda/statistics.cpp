// SPDX-License-Identifier: MIT
#include "engine/cuda/statistics.hpp"

#include <cstdint>

namespace sluice::engine::cuda {
namespace {

void read_reports(const Resources& resources, Statistics& statistics) {
  // Words that kernels write at any time.
  const auto& board = *static_cast<const volatile Board*>(resources.board.get());
  Report* const out[] = {&statistics.dispatch_reports, &statistics.combine_reports};
  for (std::size_t kind = 0; kind < protocol::kKinds; ++kind) {
    const volatile Totals& totals = board.totals[kind];
    out[kind]->lost_routes = static_cast<std::int64_t>(totals.lost_routes);
    out[kind]->bad_routes = static_cast<std::int64_t>(totals.bad_routes);
    out[kind]->overflow_rows = static_cast<std::int64_t>(totals.overflow_rows);
    out[kind]->missing.words[0] = totals.missing;
    out[kind]->refused.words[0] = totals.refused;
    out[kind]->mismatched.words[0] = totals.mismatched;
  }
}

}  // namespace

void read_statistics(const Resources& resources, Statistics& statistics) {
  read_reports(resources, statistics);
  const int experts = resources.geometry.local_experts;
  statistics.wait_ns_per_source.resize(static_cast<std::size_t>(resources.geometry.ranks));
  statistics.rows_per_expert_step.resize(static_cast<std::size_t>(experts));
  statistics.rows_per_expert_total.resize(static_cast<std::size_t>(experts));
  std::vector<unsigned long long> counted(static_cast<std::size_t>(Counters::words(experts)));
  // Without them, where the GPU is lost, they stay 0.
  if (!resources.pool
           ->write(counted.data(), resources.counters.get(),
                   counted.size() * sizeof(unsigned long long))
           .ok()) {
    return;
  }
  const auto at = [&](int word) {
    return static_cast<std::int64_t>(counted[static_cast<std::size_t>(word)]);
  };
  statistics.dispatch_wire_bytes = at(static_cast<int>(protocol::Kind::dispatch));
  statistics.combine_wire_bytes = at(static_cast<int>(protocol::Kind::combine));
  for (int rank = 0; rank < resources.geometry.ranks; ++rank) {
    statistics.wait_ns_per_source[static_cast<std::size_t>(rank)] =
        at(Counters::wait(rank, experts));
  }
  for (int expert = 0; expert < experts; ++expert) {
    const auto e = static_cast<std::size_t>(expert);
    statistics.rows_per_expert_step[e] = at(Counters::step(expert));
    statistics.rows_per_expert_total[e] = at(Counters::total(expert, experts));
  }
}

}  // namespace sluice::engine::cuda
