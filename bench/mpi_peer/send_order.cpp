// SPDX-License-Identifier: MIT
#include "send_order.hpp"

#include <algorithm>
#include <numeric>

namespace sluice::bench {
namespace {

std::size_t index(int value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

SendOrder::SendOrder(const Case& bench_case, Rows rows)
    : ranks_(bench_case.ranks),
      tokens_(bench_case.tokens),
      top_k_(bench_case.top_k),
      by_expert_(bench_case.layout != Layout::rank_major),
      per_rank_(rows == Rows::per_rank),
      groups_(by_expert_ ? bench_case.local_experts(0) : 1),
      places_(index(tokens_) * index(top_k_)),
      next_(index(ranks_) * index(groups_)),
      last_(index(ranks_)),
      announced_(index(ranks_) * index(groups_)),
      rows_(index(ranks_)),
      firsts_(index(ranks_)) {
  for (int expert = 0; expert < bench_case.experts; ++expert) {
    const int rank = bench_case.rank_of_expert(expert);
    rank_of_.push_back(rank);
    group_of_.push_back(rank * groups_ + (by_expert_ ? expert - bench_case.first_expert(rank) : 0));
  }
}

void SendOrder::compute(const std::int32_t* ids) {
  std::fill(announced_.begin(), announced_.end(), 0);
  if (per_rank_) {
    compute_by_rank(ids);
  } else {
    compute_by_expert(ids);
  }
}

void SendOrder::compute_by_expert(const std::int32_t* ids) {
  for (std::size_t at = 0; at < places_.size(); ++at)
    ++announced_[index(group_of_[index(ids[at])])];
  std::exclusive_scan(announced_.begin(), announced_.end(), next_.begin(), 0);
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::size_t first = index(rank * groups_);
    firsts_[index(rank)] = next_[first];
    rows_[index(rank)] = std::accumulate(announced_.begin() + rank * groups_,
                                         announced_.begin() + (rank + 1) * groups_, 0);
  }
  for (std::size_t at = 0; at < places_.size(); ++at) {
    places_[at] = next_[index(group_of_[index(ids[at])])]++;
  }
}

void SendOrder::compute_by_rank(const std::int32_t* ids) {
  const auto for_each_first = [&](auto&& use) {
    std::fill(last_.begin(), last_.end(), -1);
    std::size_t at = 0;
    for (int token = 0; token < tokens_; ++token) {
      for (int k = 0; k < top_k_; ++k, ++at) {
        const std::size_t rank = index(rank_of_[index(ids[at])]);
        use(at, rank, last_[rank] != token);
        last_[rank] = token;
      }
    }
  };
  for_each_first(
      [&](std::size_t, std::size_t rank, bool first) { announced_[rank] += first ? 1 : 0; });
  std::exclusive_scan(announced_.begin(), announced_.end(), next_.begin(), 0);
  for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
    rows_[rank] = announced_[rank];
    firsts_[rank] = next_[rank];
  }
  for_each_first([&](std::size_t at, std::size_t rank, bool first) {
    places_[at] = first ? next_[rank]++ : next_[rank] - 1;
  });
}

}  // namespace sluice::bench
