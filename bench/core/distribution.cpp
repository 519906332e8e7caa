// SPDX-License-Identifier: MIT
#include "distribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "random.hpp"

namespace sluice::bench {
namespace {

/// K distinct experts, all sets equally likely: the first K steps of a shuffle.
class UniformChoice {
 public:
  explicit UniformChoice(std::vector<std::int32_t> pool) : pool_(std::move(pool)) {}

  void operator()(Random& random, int top_k, std::int32_t* ids) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k) {
      const std::size_t other = k + random.below(pool_.size() - k);
      std::swap(pool_[k], pool_[other]);
      ids[k] = pool_[k];
    }
  }

 private:
  std::vector<std::int32_t> pool_;
};

/// K distinct experts, drawn one after the other with probabilities proportional to weights: the K
/// smallest of exponential variates with those rates.
class WeightedChoice {
 public:
  explicit WeightedChoice(std::vector<double> weights)
      : weights_(std::move(weights)), keys_(weights_.size()) {}

  void operator()(Random& random, int top_k, std::int32_t* ids) {
    for (std::size_t e = 0; e < weights_.size(); ++e) {
      keys_[e] = {-std::log(1.0 - random.unit()) / weights_[e], static_cast<std::int32_t>(e)};
    }
    std::partial_sort(keys_.begin(), keys_.begin() + top_k, keys_.end());
    for (int k = 0; k < top_k; ++k) ids[k] = keys_[static_cast<std::size_t>(k)].second;
  }

 private:
  std::vector<double> weights_;
  std::vector<std::pair<double, std::int32_t>> keys_;
};

std::vector<std::int32_t> shuffled_experts(int experts, Random& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

/// Popularity of each expert. Which experts are popular changes with the set, so that no rank is
/// favoured by its place.
std::vector<double> popularity(const Case& bench_case, Random& set_random) {
  const std::vector<std::int32_t> order = shuffled_experts(bench_case.experts, set_random);
  std::vector<double> weights(order.size(), 1.0);
  const double parameter = bench_case.routing.parameter;
  for (std::size_t i = 0; i < order.size(); ++i) {
    double& weight = weights[static_cast<std::size_t>(order[i])];
    if (bench_case.routing.distribution == Distribution::zipf) {
      weight = std::pow(static_cast<double>(i + 1), -parameter);
    } else if (static_cast<double>(i) < parameter) {
      // Hot experts together weigh as much as all others together.
      weight = std::max(1.0, (static_cast<double>(bench_case.experts) - parameter) / parameter);
    }
  }
  return weights;
}

/// Experts of so many random groups of all of them, which are equal.
UniformChoice group_choice(const Case& bench_case, Random& random) {
  std::vector<std::int32_t> groups = shuffled_experts(bench_case.routing.groups, random);
  const int each = bench_case.experts / bench_case.routing.groups;
  std::vector<std::int32_t> pool;
  for (int g = 0; g < static_cast<int>(bench_case.routing.parameter); ++g) {
    for (int i = 0; i < each; ++i) pool.push_back(groups[static_cast<std::size_t>(g)] * each + i);
  }
  return UniformChoice(std::move(pool));
}

template <typename Choose>
void fill_ids(const Case& bench_case, Random& random, Routing& routing, Choose&& choose) {
  const std::size_t top_k = static_cast<std::size_t>(bench_case.top_k);
  for (std::size_t at = 0; at < routing.ids.size(); at += top_k) {
    choose(random, bench_case.top_k, routing.ids.data() + at);
  }
}

}  // namespace

Status check_distribution(const Case& bench_case) {
  const RoutingSpec& spec = bench_case.routing;
  if (spec.distribution == Distribution::hot && spec.parameter > bench_case.experts) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--routing {}: there are only {} experts", spec.text(), bench_case.experts));
  }
  if (spec.distribution != Distribution::grouped) return {};
  if (bench_case.experts % spec.groups != 0 || spec.parameter > spec.groups) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--routing {}: needs at most {} groups and a number of experts that "
                              "is a multiple of {}, seen {}",
                              spec.text(), spec.groups, spec.groups, bench_case.experts));
  }
  const int choice = static_cast<int>(spec.parameter) * (bench_case.experts / spec.groups);
  if (choice >= bench_case.top_k) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("--routing {}: the groups hold {} experts, --top-k needs {}",
                            spec.text(), choice, bench_case.top_k));
}

namespace {

/// Ids of tokens that a rank does not have: -1.
void drop_absent(const Case& bench_case, Routing& routing) {
  const std::size_t top_k = static_cast<std::size_t>(bench_case.top_k);
  const std::size_t own = static_cast<std::size_t>(bench_case.tokens) * top_k;
  for (int rank = 0; rank < bench_case.ranks; ++rank) {
    const auto first =
        routing.ids.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * own);
    const std::size_t kept = static_cast<std::size_t>(bench_case.tokens_of(rank)) * top_k;
    std::fill(first + static_cast<std::ptrdiff_t>(kept), first + static_cast<std::ptrdiff_t>(own),
              -1);
  }
}

}  // namespace

Routing make_routing(const Case& bench_case, int set) {
  const std::size_t routes = static_cast<std::size_t>(bench_case.ranks) *
                             static_cast<std::size_t>(bench_case.tokens) *
                             static_cast<std::size_t>(bench_case.top_k);
  Routing routing{std::vector<std::int32_t>(routes), std::vector<float>(routes)};
  Random random(mix(bench_case.seed, static_cast<std::uint64_t>(set), 0x726f7574));
  switch (bench_case.routing.distribution) {
    case Distribution::uniform: {
      UniformChoice choice(shuffled_experts(bench_case.experts, random));
      fill_ids(bench_case, random, routing, choice);
      break;
    }
    case Distribution::grouped:
      fill_ids(bench_case, random, routing, [&](Random& source, int top_k, std::int32_t* ids) {
        group_choice(bench_case, source)(source, top_k, ids);
      });
      break;
    case Distribution::zipf:
    case Distribution::hot: {
      WeightedChoice choice(popularity(bench_case, random));
      fill_ids(bench_case, random, routing, choice);
      break;
    }
  }
  const std::size_t top_k = static_cast<std::size_t>(bench_case.top_k);
  for (std::size_t at = 0; at < routes; at += top_k) {
    float total = 0.0F;
    for (std::size_t k = 0; k < top_k; ++k) {
      routing.weights[at + k] = 0.05F + static_cast<float>(random.unit());
      total += routing.weights[at + k];
    }
    for (std::size_t k = 0; k < top_k; ++k) routing.weights[at + k] /= total;
  }
  drop_absent(bench_case, routing);
  return routing;
}

}  // namespace sluice::bench
