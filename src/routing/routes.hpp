// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "routing/expert_map.hpp"
#include "sluice/limits.hpp"
#include "sluice/types.hpp"

namespace sluice::routing {

/// The routes of T tokens in their one internal form: ids i32 [T, K], -1 = no expert, and weights
/// f32 [T, K]. Both contiguous.
struct Routes {
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  int tokens = 0;
  int top_k = 0;

  const std::int32_t* ids_of(int token) const noexcept {
    return ids + static_cast<std::ptrdiff_t>(token) * top_k;
  }
  const float* weights_of(int token) const noexcept {
    return weights + static_cast<std::ptrdiff_t>(token) * top_k;
  }
};

/// Reads i32 or i64 ids and the optional weights (then 1) and mask of any strides into that form.
/// Masked routes become -1; ids outside [-1, experts) become -1 and are counted.
/// Returns the number of such bad routes.
std::int64_t normalise(ConstTensorView ids, ConstTensorView weights, ConstTensorView mask,
                       int experts, std::int32_t* out_ids, float* out_weights);

/// One destination of one token: a rank, and which of the token's routes lead there.
struct Destination {
  int rank = 0;
  std::uint32_t mask = 0;  // Bit k: route k.
};

/// The destinations of one token, ranks ascending.
class Destinations {
 public:
  Destinations(const std::int32_t* ids, int top_k, const ExpertMap& map) noexcept;

  std::span<const Destination> list() const& noexcept {
    return {list_.data(), static_cast<std::size_t>(count_)};
  }
  std::span<const Destination> list() const&& = delete;  // The list would outlive its owner.
  const Destination* begin() const noexcept { return list_.data(); }
  const Destination* end() const noexcept { return list_.data() + count_; }

 private:
  std::array<Destination, kMaxTopk> list_;
  int count_ = 0;
};

/// Of the routes in `mask`, those at the lowest k of their expert: each distinct expert once.
std::uint32_t distinct_routes(const std::int32_t* ids, std::uint32_t mask) noexcept;

/// Of the routes in `mask`, those to the expert of route k, k among them.
std::uint32_t routes_to_same(const std::int32_t* ids, std::uint32_t mask, int k) noexcept;

/// The weight with which the expert of route k takes part: its own, or the f32 sum over the token's
/// duplicates of it within `mask`, k ascending from +0. k is the lowest of them.
float merged_weight(const std::int32_t* ids, const float* weights, std::uint32_t mask,
                    int k) noexcept;

/// membership [T, R]: 1 where the token has a route to the rank.
void membership(const Routes& routes, const ExpertMap& map, std::uint8_t* out);

/// Rows that this rank sends, by target. A token counts once per rank and once per node.
struct SendCounts {
  std::span<std::int32_t> per_expert;  // [E], distinct (token, expert)
  std::span<std::int32_t> per_rank;    // [R], distinct (token, rank)
  std::span<std::int32_t> per_node;    // [nodes], distinct (token, node)
};
/// `rank_to_node`: R entries from 0 to nodes - 1.
void count_sends(const Routes& routes, const ExpertMap& map,
                 std::span<const std::int32_t> rank_to_node, const SendCounts& out);

}  // namespace sluice::routing
