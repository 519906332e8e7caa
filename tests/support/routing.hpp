// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "support/random.hpp"

namespace sluice::support {

enum class RoutingKind {
  distinct,    ///< Uniform, no expert twice (what does not fit K > E is -1).
  duplicates,  ///< Uniform with repetition, drawn from few experts, so that many repeat.
  zipf,        ///< Distinct, expert e with a chance of 1 / (e + 1).
  hot,         ///< Every token has one common expert first; the rest uniform.
  only_hot,    ///< Every route to one expert.
  sparse,      ///< Distinct, a third of the routes -1.
  grouped,     ///< Distinct, all of four of eight equal groups of experts, drawn for each token.
  none         ///< All -1.
};

enum class TokensKind {
  full,       ///< M on every rank.
  varied,     ///< 0 to M, drawn for each rank.
  some_zero,  ///< M, but 0 on every second rank, beginning with rank 0.
  one_rank,   ///< 0 but for the last rank.
  all_zero
};

enum class MaskKind { none, token, route };

/// T of one rank.
std::int64_t draw_tokens(TokensKind kind, int rank, int ranks, int max_tokens, Random random);
/// [T, K]. `bad_percent` of the ids are replaced by values outside [-1, experts).
std::vector<std::int64_t> draw_ids(RoutingKind kind, std::int64_t tokens, int top_k, int experts,
                                   int bad_percent, Random random);
/// [T] or [T, K], a quarter zeros; empty for none.
std::vector<std::uint8_t> draw_mask(MaskKind kind, std::int64_t tokens, int top_k, Random random);

}  // namespace sluice::support
