// SPDX-License-Identifier: MIT
#include "support/routing.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

namespace sluice::support {

namespace {

// An expert with the kind's own probability.
std::int64_t draw_expert(RoutingKind kind, int experts, Random& random) {
  if (kind == RoutingKind::duplicates) return random.below(std::min(experts, 3));
  if (kind != RoutingKind::zipf) return random.below(experts);
  double total = 0.0;
  for (int e = 0; e < experts; ++e) total += 1.0 / (e + 1);
  double left = total * static_cast<double>(random.unit());
  for (int e = 0; e < experts; ++e) {
    left -= 1.0 / (e + 1);
    if (left < 0.0) return e;
  }
  return experts - 1;
}

constexpr int kGroups = 8;
constexpr int kGroupsOfToken = 4;

// The groups that a token's experts are of.
std::array<std::int64_t, kGroups> draw_groups(Random& random) {
  std::array<std::int64_t, kGroups> groups{0, 1, 2, 3, 4, 5, 6, 7};
  for (std::size_t i = 0; i < kGroupsOfToken; ++i) {
    const auto other =
        i + static_cast<std::size_t>(random.below(static_cast<std::int64_t>(groups.size() - i)));
    std::swap(groups[i], groups[other]);
  }
  return groups;
}

std::int64_t draw_of_groups(const std::array<std::int64_t, kGroups>& groups, int experts,
                            Random& random) {
  const std::int64_t each = experts / kGroups;
  return groups[static_cast<std::size_t>(random.below(kGroupsOfToken))] * each + random.below(each);
}

std::int64_t bad_id(int experts, Random& random) {
  // Values that fit int32: the same ids are given as i32 and i64.
  const std::array<std::int64_t, 5> ids = {experts, -2, std::numeric_limits<std::int32_t>::max(),
                                           std::numeric_limits<std::int32_t>::min(),
                                           std::int64_t{experts} + 1000};
  return ids[static_cast<std::size_t>(random.below(5))];
}

}  // namespace

std::int64_t draw_tokens(TokensKind kind, int rank, int ranks, int max_tokens, Random random) {
  switch (kind) {
    case TokensKind::full: return max_tokens;
    case TokensKind::varied: return random.below(std::int64_t{max_tokens} + 1);
    case TokensKind::some_zero: return rank % 2 == 0 ? 0 : max_tokens;
    case TokensKind::one_rank: return rank == ranks - 1 ? max_tokens : 0;
    case TokensKind::all_zero: return 0;
  }
  return 0;
}

std::vector<std::int64_t> draw_ids(RoutingKind kind, std::int64_t tokens, int top_k, int experts,
                                   int bad_percent, Random random) {
  std::vector<std::int64_t> ids;
  const std::int64_t hot = experts / 2;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto begin = static_cast<std::ptrdiff_t>(ids.size());
    const bool grouped = kind == RoutingKind::grouped;
    const auto groups = grouped ? draw_groups(random) : std::array<std::int64_t, kGroups>{};
    for (int k = 0; k < top_k; ++k) {
      const bool repeats = kind == RoutingKind::duplicates || kind == RoutingKind::only_hot;
      std::int64_t id = -1;
      if (kind == RoutingKind::only_hot || (kind == RoutingKind::hot && k == 0)) {
        id = hot;
      } else if (kind == RoutingKind::sparse && random.below(3) == 0) {
        id = -1;
      } else if (grouped && k < experts / kGroups * kGroupsOfToken) {
        do {
          id = draw_of_groups(groups, experts, random);
        } while (std::find(ids.begin() + begin, ids.end(), id) != ids.end());
      } else if (grouped) {
        id = -1;
      } else if (kind != RoutingKind::none && (repeats || k < experts)) {
        id = draw_expert(kind, experts, random);
        // Distinct: the next free expert, so that the draw ends.
        while (!repeats && std::find(ids.begin() + begin, ids.end(), id) != ids.end()) {
          id = (id + 1) % experts;
        }
      }
      ids.push_back(id);
    }
    for (auto id = ids.begin() + begin; id != ids.end(); ++id) {
      if (bad_percent > 0 && random.chance(bad_percent)) *id = bad_id(experts, random);
    }
  }
  return ids;
}

std::vector<std::uint8_t> draw_mask(MaskKind kind, std::int64_t tokens, int top_k, Random random) {
  if (kind == MaskKind::none) return {};
  const std::int64_t entries = kind == MaskKind::token ? tokens : tokens * top_k;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(entries));
  for (std::uint8_t& entry : mask) {
    entry = random.chance(25) ? std::uint8_t{0} : static_cast<std::uint8_t>(1 + random.below(255));
  }
  return mask;
}

}  // namespace sluice::support
