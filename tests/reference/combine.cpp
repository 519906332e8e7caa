// SPDX-License-Identifier: MIT
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "reference/reference.hpp"
#include "reference/small_float.hpp"

namespace sluice::reference {

namespace {

DType codec_dtype(CodecKind kind) {
  Codec codec;
  codec.kind = kind;
  return row_dtype(codec);
}

// Where the result of (home, token, local expert) lies among a rank's rows.
using RowIndex = std::map<std::tuple<int, std::int64_t, int>, std::size_t>;

RowIndex index_rows(const RankRows& rows) {
  RowIndex index;
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const Row& row = rows.rows[i];
    index[{row.source, row.token, row.local_expert}] = i;
  }
  return index;
}

int local_number(const RankRows& rows, std::int32_t expert) {
  for (std::size_t l = 0; l < rows.local_experts.size(); ++l) {
    if (rows.local_experts[l] == expert) return static_cast<int>(l);
  }
  return -1;
}

// One route of a token at home.
struct HomeRoute {
  bool valid = false;
  bool answered = false;
  bool takes_part = false;  // answered, and no duplicate of a lower k
  int rank = -1;
  std::size_t row = 0;  // place among the rank's rows
  float own_weight = 0.0F;
  float weight = 0.0F;  // the duplicates' sum
};

class Home {
 public:
  Home(const DispatchProblem& dispatch_problem, const Dispatched& dispatched,
       const CombineProblem& problem, const std::vector<RowIndex>& rows, int rank)
      : shape_(dispatch_problem),
        dispatched_(dispatched),
        problem_(problem),
        rows_(rows),
        rank_(rank),
        input_(problem.inputs[at(rank)]),
        hop_(codec_dtype(problem.codec)) {}

  Combined run() {
    Combined result;
    const std::int64_t tokens = shape_.inputs[at(rank_)].tokens;
    const auto hidden = at(shape_.hidden);
    result.out.resize(at(tokens) * hidden * bytes_of(input_.out_dtype));
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<HomeRoute> routes = read(token);
      float all = 0.0F;
      float answered = 0.0F;
      bool lost = false;
      bool any = false;
      for (std::size_t k = 0; k < routes.size(); ++k) {
        const HomeRoute& route = routes[k];
        if (route.valid) all = all + route.own_weight;
        if (route.answered) answered = answered + route.own_weight;
        any = any || route.answered;
        if (route.valid && !route.answered) {
          lost = true;
          ++result.lost_routes;
        }
        result.weights_home.push_back(weight_home(route, k));
      }
      result.surviving_weight.push_back(answered);
      for (std::size_t h = 0; h < hidden; ++h) {
        float sum = sum_of(routes, h);
        if (lost && input_.renormalize) {
          if (!any) {
            sum = 0.0F;
          } else if (answered != all) {
            sum = sum * (all / answered);
          }
        }
        const std::size_t element = at(token) * hidden + h;
        for (const Matrix& shared : input_.shared_results) {
          sum = sum + load(shared.dtype, shared.data.data(), element);
        }
        for (const Matrix& bias : input_.biases) {
          sum = sum + load(bias.dtype, bias.data.data(), element);
        }
        store(input_.out_dtype, result.out.data(), element, sum);
      }
    }
    return result;
  }

 private:
  std::vector<HomeRoute> read(std::int64_t token) const {
    const auto top_k = at(shape_.top_k);
    const Routes& mine = dispatched_.routes[at(rank_)];
    const std::vector<float>& weights = input_.weights.empty() ? mine.weights : input_.weights;
    std::vector<HomeRoute> routes(top_k);
    for (std::size_t k = 0; k < top_k; ++k) {
      const std::int32_t id = mine.ids[at(token) * top_k + k];
      if (id < 0) continue;
      HomeRoute& route = routes[k];
      route.valid = true;
      route.own_weight = weights[at(token) * top_k + k];
      route.rank = dispatched_.expert_to_rank[at(id)];
      const RankRows& theirs = dispatched_.ranks[at(route.rank)];
      const bool by_rank = shape_.layout == Layout::rank_major;
      const int local = by_rank ? -1 : local_number(theirs, id);
      route.row = rows_[at(route.rank)].at({rank_, token, local});
      const bool rank_lost = !problem_.lost_ranks.empty() && problem_.lost_ranks[at(route.rank)];
      route.answered = !rank_lost && theirs.rows[route.row].stored;
      bool first = true;
      int same = 0;
      float sum = 0.0F;
      for (std::size_t other = 0; other < top_k; ++other) {
        if (mine.ids[at(token) * top_k + other] != id) continue;
        if (other < k) first = false;
        sum = sum + weights[at(token) * top_k + other];
        ++same;
      }
      route.weight = same > 1 ? sum : route.own_weight;
      route.takes_part = route.answered && first;
    }
    return routes;
  }

  float weight_home(const HomeRoute& route, std::size_t k) const {
    if (!route.answered || shape_.layout != Layout::rank_major) return 0.0F;
    const std::vector<float>& sent = problem_.inputs[at(route.rank)].row_weights;
    return sent.empty() ? 0.0F : sent[route.row * at(shape_.top_k) + k];
  }

  float result_of(const HomeRoute& route, std::size_t h) const {
    return load(problem_.y_dtype, problem_.inputs[at(route.rank)].y.data(),
                route.row * at(shape_.hidden) + h);
  }

  float add(const HomeRoute& route, float value, float sum) const {
    return problem_.plain_sum ? sum + value : std::fma(route.weight, value, sum);
  }

  /// Behind the last one if it is the first of its node.
  float& sum_of_node(int node) {
    for (auto& [other, node_sum] : node_sums_) {
      if (other == node) return node_sum;
    }
    return node_sums_.emplace_back(node, 0.0F).second;
  }

  float sum_of(const std::vector<HomeRoute>& routes, std::size_t h) {
    float sum = 0.0F;
    if (problem_.reduce == Reduce::single) {
      for (const HomeRoute& route : routes) {
        if (route.takes_part) sum = add(route, through(hop_, result_of(route, h)), sum);
      }
      return sum;
    }
    // In the order of first appearance, which is that of their lowest ranks.
    node_sums_.clear();
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      float partial = 0.0F;
      bool contributes = false;
      for (const HomeRoute& route : routes) {
        if (!route.answered || route.rank != rank) continue;
        contributes = true;
        if (shape_.layout == Layout::rank_major) {
          partial = result_of(route, h);
        } else if (route.takes_part) {
          partial = add(route, result_of(route, h), partial);
        }
      }
      if (!contributes) continue;
      if (problem_.reduce == Reduce::rank) {
        sum = sum + through(hop_, partial);
        continue;
      }
      const int node = problem_.rank_to_node.empty() ? 0 : problem_.rank_to_node[at(rank)];
      float& node_sum = sum_of_node(node);
      node_sum = node_sum + through(hop_, partial);
    }
    for (const auto& [node, node_sum] : node_sums_) sum = sum + through(hop_, node_sum);
    return sum;
  }

  const DispatchProblem& shape_;
  const Dispatched& dispatched_;
  const CombineProblem& problem_;
  const std::vector<RowIndex>& rows_;
  int rank_;
  const CombineInput& input_;
  DType hop_;
  std::vector<std::pair<int, float>> node_sums_;  // Of one element.
};

}  // namespace

std::vector<Combined> combine(const DispatchProblem& dispatch_problem, const Dispatched& dispatched,
                              const CombineProblem& problem) {
  std::vector<RowIndex> rows;
  for (const RankRows& rank : dispatched.ranks) rows.push_back(index_rows(rank));
  std::vector<Combined> homes;
  for (int rank = 0; rank < dispatch_problem.ranks; ++rank) {
    homes.push_back(Home(dispatch_problem, dispatched, problem, rows, rank).run());
  }
  return homes;
}

}  // namespace sluice::reference
