// SPDX-License-Identifier: MIT
#include "fuzz/compare_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "routing/expert_map.hpp"
#include "routing/routes.hpp"
#include "routing/row_plan.hpp"

namespace sluice::fuzz {
namespace {

using reference::at;
using reference::Dispatched;
using reference::DispatchProblem;
using reference::RankInput;
using reference::RankRows;

/// What src/routing makes of one source's tokens.
struct SourceRoutes {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::int64_t bad_routes = 0;

  routing::Routes view(const DispatchProblem& problem, std::int64_t tokens) const {
    return {ids.data(), weights.data(), static_cast<int>(tokens), problem.top_k};
  }
};

SourceRoutes normalise(const DispatchProblem& problem, const RankInput& input) {
  const std::int64_t k = problem.top_k;
  SourceRoutes routes;
  routes.ids.resize(at(input.tokens * k));
  routes.weights.resize(routes.ids.size());
  const ConstTensorView ids(input.topk_ids.data(), DType::i64, input.tokens, k);
  ConstTensorView weights;
  if (!input.topk_weights.empty()) {
    weights = ConstTensorView(input.topk_weights.data(), DType::f32, input.tokens, k);
  }
  ConstTensorView mask;
  if (!input.mask.empty()) {
    const bool per_token = input.mask.size() == at(input.tokens) && k != 1;
    mask = per_token ? ConstTensorView(input.mask.data(), DType::u8, input.tokens)
                     : ConstTensorView(input.mask.data(), DType::u8, input.tokens, k);
  }
  routes.bad_routes = routing::normalise(ids, weights, mask, problem.experts, routes.ids.data(),
                                         routes.weights.data());
  return routes;
}

template <typename T>
std::string differ(const char* what, int rank, const std::vector<T>& seen,
                   const std::vector<T>& expected) {
  if (seen.size() != expected.size()) {
    return fmt::format("rank {}: {} has {} entries, expected {}", rank, what, seen.size(),
                       expected.size());
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (std::memcmp(&seen[i], &expected[i], sizeof(T)) != 0) {
      return fmt::format("rank {}: {}[{}] is {}, expected {}", rank, what, i, seen[i], expected[i]);
    }
  }
  return "";
}

std::string compare_source(const DispatchProblem& problem, const Dispatched& expected,
                           const routing::ExpertMap& map, int rank, const SourceRoutes& routes) {
  const reference::Routes& want = expected.routes[at(rank)];
  if (std::string text = differ("ids", rank, routes.ids, want.ids); !text.empty()) return text;
  if (std::string text = differ("weights", rank, routes.weights, want.weights); !text.empty()) {
    return text;
  }
  if (routes.bad_routes != want.bad_routes) {
    return fmt::format("rank {}: {} bad routes, expected {}", rank, routes.bad_routes,
                       want.bad_routes);
  }
  // Counts of what the source sends, from the reference's ids by plain loops. Two ranks to a node.
  const std::int64_t tokens = problem.inputs[at(rank)].tokens;
  std::vector<std::int32_t> rank_to_node;
  for (int r = 0; r < problem.ranks; ++r) rank_to_node.push_back(r / 2);
  const std::size_t nodes = at(rank_to_node.back()) + 1;
  std::vector<std::uint8_t> member(at(tokens * problem.ranks));
  std::vector<std::int32_t> per_expert(at(problem.experts));
  std::vector<std::int32_t> per_rank(at(problem.ranks));
  std::vector<std::int32_t> per_node(nodes);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<bool> experts(per_expert.size());
    std::vector<bool> ranks(per_rank.size());
    std::vector<bool> to_nodes(nodes);
    for (std::int64_t k = 0; k < problem.top_k; ++k) {
      const std::int32_t id = want.ids[at(t * problem.top_k + k)];
      if (id < 0) continue;
      const std::int32_t to = expected.expert_to_rank[at(id)];
      experts[at(id)] = true;
      ranks[at(to)] = true;
      to_nodes[at(rank_to_node[at(to)])] = true;
      member[at(t * problem.ranks + to)] = 1;
    }
    for (std::size_t i = 0; i < experts.size(); ++i) per_expert[i] += experts[i] ? 1 : 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) per_rank[i] += ranks[i] ? 1 : 0;
    for (std::size_t i = 0; i < nodes; ++i) per_node[i] += to_nodes[i] ? 1 : 0;
  }
  const routing::Routes view = routes.view(problem, tokens);
  std::vector<std::uint8_t> member_seen(member.size(), 7);
  std::vector<std::int32_t> expert_seen(per_expert.size(), 7);
  std::vector<std::int32_t> rank_seen(per_rank.size(), 7);
  std::vector<std::int32_t> node_seen(per_node.size(), 7);
  routing::membership(view, map, member_seen.data());
  routing::count_sends(view, map, rank_to_node, {expert_seen, rank_seen, node_seen});
  std::string text = differ("membership", rank, member_seen, member);
  if (text.empty()) text = differ("sends per expert", rank, expert_seen, per_expert);
  if (text.empty()) text = differ("sends per rank", rank, rank_seen, per_rank);
  if (text.empty()) text = differ("sends per node", rank, node_seen, per_node);
  return text;
}

/// The records that `rank` gets, as its peers would send them.
struct Records {
  std::vector<std::int32_t> source;
  std::vector<std::int32_t> token;
  std::vector<std::int32_t> local_ids;
  std::vector<float> local_weights;
  std::vector<std::int64_t> source_offsets;
};

Records collect_records(const DispatchProblem& problem, const routing::ExpertMap& map,
                        const std::vector<SourceRoutes>& routes, int rank) {
  Records records;
  for (int source = 0; source < problem.ranks; ++source) {
    records.source_offsets.push_back(static_cast<std::int64_t>(records.source.size()));
    const std::int64_t tokens = problem.inputs[at(source)].tokens;
    const routing::Routes view = routes[at(source)].view(problem, tokens);
    for (int token = 0; token < view.tokens; ++token) {
      const routing::Destinations destinations(view.ids_of(token), view.top_k, map);
      for (const routing::Destination& to : destinations.list()) {
        if (to.rank != rank) continue;
        records.source.push_back(source);
        records.token.push_back(token);
        for (int k = 0; k < view.top_k; ++k) {
          const bool here = ((to.mask >> k) & 1U) != 0;
          records.local_ids.push_back(here ? map.local_of(view.ids_of(token)[k]) : -1);
          records.local_weights.push_back(here ? view.weights_of(token)[k] : 0.0F);
        }
      }
    }
  }
  records.source_offsets.push_back(static_cast<std::int64_t>(records.source.size()));
  return records;
}

std::string compare_rows(const DispatchProblem& problem, const RankRows& want, int rank,
                         const Records& records) {
  const std::size_t experts = want.local_experts.size();
  std::vector<std::int32_t> counts(experts, 7);
  std::vector<std::int32_t> aligned(experts, 7);
  std::vector<std::int64_t> offsets(experts + 1, 7);
  std::vector<std::int32_t> route_rows(records.local_ids.size(), 7);
  routing::RowPlacement placement;
  placement.layout = problem.layout;
  placement.alignment = problem.expert_alignment;
  placement.capacity = problem.capacity;
  if (problem.layout == Layout::expert_slab && problem.capacity == 0) {
    placement.capacity = static_cast<std::int64_t>(problem.ranks) * problem.max_tokens;
  }
  routing::RowPlan plan;
  plan.records = static_cast<std::int64_t>(records.source.size());
  plan.top_k = problem.top_k;
  plan.local_ids = records.local_ids.data();
  plan.counts = counts;
  plan.aligned_counts = aligned;
  plan.offsets = offsets;
  plan.route_rows = route_rows.data();
  const routing::RowTotals totals = routing::plan_rows(placement, plan);

  std::string text = differ("counts", rank, counts, want.counts);
  if (text.empty()) text = differ("aligned counts", rank, aligned, want.aligned_counts);
  if (text.empty() && problem.layout != Layout::rank_major) {
    text = differ("offsets", rank, offsets, want.offsets);
  }
  if (text.empty()) text = differ("route rows", rank, route_rows, want.route_rows);
  if (!text.empty()) return text;
  // The reference numbers all rows; those of the tensor end at the capacity.
  std::int64_t rows = want.row_count;
  if (problem.layout != Layout::expert_slab && problem.capacity > 0) {
    rows = std::min(rows, problem.capacity);
  }
  if (totals.rows != rows) {
    return fmt::format("rank {}: {} rows, expected {}", rank, totals.rows, rows);
  }
  if (totals.overflow != want.overflow_rows) {
    return fmt::format("rank {}: {} overflow rows, expected {}", rank, totals.overflow,
                       want.overflow_rows);
  }
  return "";
}

}  // namespace

std::string compare_routing(const DispatchProblem& problem) {
  const Dispatched expected = reference::dispatch(problem);
  auto map = routing::ExpertMap::create(problem.experts, problem.ranks, problem.expert_to_rank);
  if (!map) return "the expert map was refused: " + map.status().to_string();
  const std::vector<std::int32_t> owners(map->expert_to_rank().begin(),
                                         map->expert_to_rank().end());
  if (std::string text = differ("owners", 0, owners, expected.expert_to_rank); !text.empty()) {
    return text;
  }
  std::vector<SourceRoutes> routes;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    routes.push_back(normalise(problem, problem.inputs[at(rank)]));
    std::string text = compare_source(problem, expected, *map, rank, routes.back());
    if (!text.empty()) return text;
  }
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const RankRows& want = expected.ranks[at(rank)];
    const std::vector<std::int32_t> mine(map->experts_of(rank).begin(),
                                         map->experts_of(rank).end());
    const Records records = collect_records(problem, *map, routes, rank);
    std::string text = differ("local experts", rank, mine, want.local_experts);
    if (text.empty()) text = differ("record ranks", rank, records.source, want.record_rank);
    if (text.empty()) text = differ("record tokens", rank, records.token, want.record_token);
    if (text.empty()) text = differ("local ids", rank, records.local_ids, want.local_ids);
    if (text.empty()) {
      text = differ("local weights", rank, records.local_weights, want.local_weights);
    }
    if (text.empty()) {
      text = differ("source offsets", rank, records.source_offsets, want.source_offsets);
    }
    if (text.empty()) text = compare_rows(problem, want, rank, records);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace sluice::fuzz
