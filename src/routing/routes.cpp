// SPDX-License-Identifier: MIT
#include "routing/routes.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/mutants.hpp"

namespace sluice::routing {
namespace {

template <typename T>
T element(const ConstTensorView& view, std::int64_t row, std::int64_t column) noexcept {
  return static_cast<const T*>(view.data)[row * view.strides[0] + column * view.strides[1]];
}

bool is_masked(const ConstTensorView& mask, std::int64_t token, std::int64_t k) noexcept {
  if (!mask.given()) return false;
  return element<std::uint8_t>(mask, token, mask.dims == 2 ? k : 0) == 0;
}

}  // namespace

std::int64_t normalise(ConstTensorView ids, ConstTensorView weights, ConstTensorView mask,
                       int experts, std::int32_t* out_ids, float* out_weights) {
  std::int64_t bad = 0;
  for (std::int64_t token = 0; token < ids.shape[0]; ++token) {
    for (std::int64_t k = 0; k < ids.shape[1]; ++k) {
      std::int64_t id = ids.dtype == DType::i64 ? element<std::int64_t>(ids, token, k)
                                                : element<std::int32_t>(ids, token, k);
      if (is_masked(mask, token, k)) {
        id = -1;
      } else if (id < -1 || id >= experts) {
        id = base::mutant(base::Mutant::bad_ids_kept) ? experts - 1 : -1;
        ++bad;
      }
      *out_ids++ = static_cast<std::int32_t>(id);
      *out_weights++ = weights.given() ? element<float>(weights, token, k) : 1.0F;
    }
  }
  return bad;
}

Destinations::Destinations(const std::int32_t* ids, int top_k, const ExpertMap& map) noexcept {
  for (int k = 0; k < top_k; ++k) {
    if (ids[k] < 0) continue;
    const int rank = map.rank_of(ids[k]);
    int at = count_;
    while (at > 0 && list_[static_cast<std::size_t>(at) - 1].rank >= rank) --at;
    auto& found = list_[static_cast<std::size_t>(at)];
    if (at == count_ || found.rank != rank) {
      std::copy_backward(list_.begin() + at, list_.begin() + count_, list_.begin() + count_ + 1);
      found = {rank, 0};
      ++count_;
    }
    found.mask |= 1U << k;
  }
}

std::uint32_t distinct_routes(const std::int32_t* ids, std::uint32_t mask) noexcept {
  std::uint32_t distinct = 0;
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const int k = std::countr_zero(left);
    bool first = true;
    for (std::uint32_t lower = distinct; lower != 0 && first; lower &= lower - 1) {
      first = ids[std::countr_zero(lower)] != ids[k];
    }
    if (first) distinct |= 1U << k;
  }
  return distinct;
}

float merged_weight(const std::int32_t* ids, const float* weights, std::uint32_t mask,
                    int k) noexcept {
  if (base::mutant(base::Mutant::duplicate_weight_dropped)) return weights[k];
  float sum = 0.0F;
  int count = 0;
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const int other = std::countr_zero(left);
    if (ids[other] != ids[k]) continue;
    sum += weights[other];
    ++count;
  }
  return count == 1 ? weights[k] : sum;
}

void membership(const Routes& routes, const ExpertMap& map, std::uint8_t* out) {
  const auto ranks = static_cast<std::size_t>(map.ranks());
  std::fill_n(out, static_cast<std::size_t>(routes.tokens) * ranks, std::uint8_t{0});
  for (int token = 0; token < routes.tokens; ++token, out += ranks) {
    for (int k = 0; k < routes.top_k; ++k) {
      const std::int32_t id = routes.ids_of(token)[k];
      if (id >= 0) out[map.rank_of(id)] = 1;
    }
  }
}

void count_sends(const Routes& routes, const ExpertMap& map,
                 std::span<const std::int32_t> rank_to_node, const SendCounts& out) {
  std::fill(out.per_expert.begin(), out.per_expert.end(), 0);
  std::fill(out.per_rank.begin(), out.per_rank.end(), 0);
  std::fill(out.per_node.begin(), out.per_node.end(), 0);
  // The last token counted on a node: a token counts once there however many ranks it reaches.
  std::vector<int> last_token(out.per_node.size(), -1);
  for (int token = 0; token < routes.tokens; ++token) {
    const std::int32_t* ids = routes.ids_of(token);
    for (const Destination& to : Destinations(ids, routes.top_k, map)) {
      ++out.per_rank[static_cast<std::size_t>(to.rank)];
      const auto node = static_cast<std::size_t>(rank_to_node[static_cast<std::size_t>(to.rank)]);
      if (last_token[node] != token) ++out.per_node[node];
      last_token[node] = token;
      for (std::uint32_t left = distinct_routes(ids, to.mask); left != 0; left &= left - 1) {
        ++out.per_expert[static_cast<std::size_t>(ids[std::countr_zero(left)])];
      }
    }
  }
}

}  // namespace sluice::routing
