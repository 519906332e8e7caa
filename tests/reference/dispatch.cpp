// SPDX-License-Identifier: MIT
#include "reference/reference.hpp"
#include "reference/small_float.hpp"

namespace sluice::reference {

namespace {

constexpr std::int32_t kAbsent = -1;
constexpr std::int32_t kDuplicate = -2;
constexpr std::int32_t kOverflow = -3;

Routes read_routes(const DispatchProblem& problem, const RankInput& input) {
  Routes routes;
  const auto top_k = at(problem.top_k);
  const auto tokens = at(input.tokens);
  const bool token_mask = !input.mask.empty() && input.mask.size() != tokens * top_k;
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::size_t route = t * top_k + k;
      // With K = 1 both forms of the mask are the same bytes.
      const bool masked = !input.mask.empty() && input.mask[token_mask ? t : route] == 0;
      std::int64_t id = input.topk_ids[route];
      if (masked) id = -1;
      if (id < -1 || id >= problem.experts) {
        ++routes.bad_routes;
        id = -1;
      }
      routes.ids.push_back(static_cast<std::int32_t>(id));
      routes.weights.push_back(input.topk_weights.empty() ? 1.0F : input.topk_weights[route]);
    }
  }
  return routes;
}

// The lowest k of a token's routes to `expert`, or K.
std::size_t lowest_route(const Routes& routes, std::size_t token, std::size_t top_k,
                         std::int32_t expert) {
  for (std::size_t k = 0; k < top_k; ++k) {
    if (routes.ids[token * top_k + k] == expert) return k;
  }
  return top_k;
}

// The lowest k of a token's routes to `rank`, or K.
std::size_t lowest_route_to_rank(const Dispatched& all, const Routes& routes, std::size_t token,
                                 std::size_t top_k, int rank) {
  for (std::size_t k = 0; k < top_k; ++k) {
    const std::int32_t id = routes.ids[token * top_k + k];
    if (id >= 0 && all.expert_to_rank[at(id)] == rank) return k;
  }
  return top_k;
}

void number_records(const DispatchProblem& problem, const Dispatched& all, int rank,
                    RankRows& mine) {
  const auto top_k = at(problem.top_k);
  for (int source = 0; source < problem.ranks; ++source) {
    mine.source_offsets.push_back(mine.records());
    const Routes& routes = all.routes[at(source)];
    const auto tokens = at(problem.inputs[at(source)].tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::size_t first = lowest_route_to_rank(all, routes, t, top_k, rank);
      if (first == top_k) continue;
      const std::int64_t record = mine.records();
      if (problem.layout == Layout::rank_major) {
        Row row{record, source, static_cast<std::int64_t>(t), static_cast<int>(first), -1, true};
        row.stored = problem.capacity == 0 || record < problem.capacity;
        mine.overflow_rows += row.stored ? 0 : 1;
        mine.rows.push_back(row);
      }
      mine.record_rank.push_back(source);
      mine.record_token.push_back(static_cast<std::int32_t>(t));
    }
  }
  mine.source_offsets.push_back(mine.records());
}

void count_experts(const DispatchProblem& problem, const Dispatched& all, RankRows& mine) {
  const auto top_k = at(problem.top_k);
  const bool aligned = problem.layout == Layout::expert_major;
  const std::int64_t alignment = aligned ? problem.expert_alignment : 1;
  for (const std::int32_t expert : mine.local_experts) {
    std::int64_t count = 0;
    for (int source = 0; source < problem.ranks; ++source) {
      for (std::size_t t = 0; t < at(problem.inputs[at(source)].tokens); ++t) {
        if (lowest_route(all.routes[at(source)], t, top_k, expert) < top_k) ++count;
      }
    }
    mine.counts.push_back(static_cast<std::int32_t>(count));
    mine.aligned_counts.push_back(
        static_cast<std::int32_t>((count + alignment - 1) / alignment * alignment));
  }
}

void number_expert_rows(const DispatchProblem& problem, const Dispatched& all, RankRows& mine) {
  const auto top_k = at(problem.top_k);
  const bool slab = problem.layout == Layout::expert_slab;
  const std::int64_t worst = static_cast<std::int64_t>(problem.ranks) * problem.max_tokens;
  const std::int64_t slab_rows = problem.capacity > 0 ? problem.capacity : worst;
  std::int64_t start = 0;
  for (std::size_t local = 0; local < mine.local_experts.size(); ++local) {
    mine.offsets.push_back(start);
    std::int64_t within = 0;
    for (int source = 0; source < problem.ranks; ++source) {
      Segment segment{start + within, 0};
      for (std::size_t t = 0; t < at(problem.inputs[at(source)].tokens); ++t) {
        const std::size_t k =
            lowest_route(all.routes[at(source)], t, top_k, mine.local_experts[local]);
        if (k == top_k) continue;
        Row row{start + within,          source, static_cast<std::int64_t>(t), static_cast<int>(k),
                static_cast<int>(local), true};
        if (slab) {
          row.stored = within < slab_rows;
        } else {
          row.stored = problem.capacity == 0 || row.number < problem.capacity;
        }
        mine.overflow_rows += row.stored ? 0 : 1;
        mine.rows.push_back(row);
        ++within;
        ++segment.count;
      }
      mine.source_segments.push_back(segment);
    }
    start += slab ? slab_rows : mine.aligned_counts[local];
  }
  mine.offsets.push_back(start);
  mine.row_count = start;
}

const Row& find_row(const RankRows& mine, int source, std::int64_t token, int local_expert) {
  for (const Row& row : mine.rows) {
    if (row.source == source && row.token == token && row.local_expert == local_expert) return row;
  }
  static const Row none{-1, -1, -1, -1, -1, false};
  return none;  // Not reached: every route of a record has a row.
}

void describe_records(const DispatchProblem& problem, const Dispatched& all, int rank,
                      RankRows& mine) {
  const auto top_k = at(problem.top_k);
  for (std::size_t record = 0; record < mine.record_rank.size(); ++record) {
    const std::int32_t source = mine.record_rank[record];
    const std::int32_t token = mine.record_token[record];
    const Routes& routes = all.routes[at(source)];
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::size_t route = at(token) * top_k + k;
      const std::int32_t id = routes.ids[route];
      if (id < 0 || all.expert_to_rank[at(id)] != rank) {
        mine.local_ids.push_back(-1);
        mine.local_weights.push_back(0.0F);
        mine.route_rows.push_back(kAbsent);
        continue;
      }
      int local = 0;
      while (mine.local_experts[at(local)] != id) ++local;
      mine.local_ids.push_back(local);
      mine.local_weights.push_back(routes.weights[route]);
      if (problem.layout == Layout::rank_major) {
        const Row& row = mine.rows[record];
        mine.route_rows.push_back(row.stored ? static_cast<std::int32_t>(row.number) : kOverflow);
      } else if (lowest_route(routes, at(token), top_k, id) < k) {
        mine.route_rows.push_back(kDuplicate);
      } else {
        const Row& row = find_row(mine, source, token, local);
        mine.route_rows.push_back(row.stored ? static_cast<std::int32_t>(row.number) : kOverflow);
      }
    }
  }
}

}  // namespace

std::vector<std::int32_t> expert_map(const DispatchProblem& problem) {
  if (!problem.expert_to_rank.empty()) return problem.expert_to_rank;
  std::vector<std::int32_t> map;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const int extra = rank < problem.experts % problem.ranks ? 1 : 0;
    for (int i = 0; i < problem.experts / problem.ranks + extra; ++i) map.push_back(rank);
  }
  return map;
}

Dispatched dispatch(const DispatchProblem& problem) {
  Dispatched all;
  all.expert_to_rank = expert_map(problem);
  const auto hidden = at(problem.hidden);
  for (const RankInput& input : problem.inputs) {
    all.routes.push_back(read_routes(problem, input));
    std::vector<EncodedRow> encoded = input.encoded;
    const std::size_t row_bytes = hidden * bytes_of(input.x_dtype);
    for (std::size_t t = encoded.size(); t < at(input.tokens) && !input.x.empty(); ++t) {
      encoded.push_back(
          encode_row(problem.codec, input.x_dtype, input.x.data() + t * row_bytes, hidden));
    }
    all.encoded.push_back(std::move(encoded));
  }
  for (int rank = 0; rank < problem.ranks; ++rank) {
    RankRows mine;
    for (std::int32_t expert = 0; expert < problem.experts; ++expert) {
      if (all.expert_to_rank[at(expert)] == rank) mine.local_experts.push_back(expert);
    }
    number_records(problem, all, rank, mine);
    count_experts(problem, all, mine);
    if (problem.layout == Layout::rank_major) {
      mine.row_count = mine.records();
    } else {
      number_expert_rows(problem, all, mine);
    }
    describe_records(problem, all, rank, mine);
    all.ranks.push_back(std::move(mine));
  }
  return all;
}

}  // namespace sluice::reference
