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
  // A set of ranks, and their masks where they are in it: several passes over every token of a call
  // are made of this, so it neither sorts nor clears.
  constexpr int kWordRanks = 64;
  std::array<std::uint64_t, kMaxRanks / kWordRanks> seen;
  std::array<std::uint32_t, kMaxRanks> masks;
  const int words = (map.ranks() + kWordRanks - 1) / kWordRanks;
  for (int word = 0; word < words; ++word) seen[static_cast<std::size_t>(word)] = 0;
  for (int k = 0; k < top_k; ++k) {
    if (ids[k] < 0) continue;
    const auto rank = static_cast<std::size_t>(map.rank_of(ids[k]));
    std::uint64_t& word = seen[rank / kWordRanks];
    const std::uint64_t bit = std::uint64_t{1} << (rank % kWordRanks);
    masks[rank] = ((word & bit) != 0 ? masks[rank] : 0) | 1U << k;
    word |= bit;
  }
  for (int word = 0; word < words; ++word) {
    for (std::uint64_t left = seen[static_cast<std::size_t>(word)]; left != 0; left &= left - 1) {
      const int rank = word * kWordRanks + std::countr_zero(left);
      list_[static_cast<std::size_t>(count_++)] = {rank, masks[static_cast<std::size_t>(rank)]};
    }
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

std::uint32_t routes_to_same(const std::int32_t* ids, std::uint32_t mask, int k) noexcept {
  std::uint32_t same = 0;
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const int other = std::countr_zero(left);
    if (ids[other] == ids[k]) same |= 1U << other;
  }
  return same;
}

float merged_weight(const std::int32_t* ids, const float* weights, std::uint32_t mask,
                    int k) noexcept {
  if (base::mutant(base::Mutant::duplicate_weight_dropped)) return weights[k];
  const std::uint32_t same = routes_to_same(ids, mask, k);
  if (std::has_single_bit(same)) return weights[k];
  float sum = 0.0F;
  for (std::uint32_t left = same; left != 0; left &= left - 1) {
    sum += weights[std::countr_zero(left)];
  }
  return sum;
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
