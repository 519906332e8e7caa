// SPDX-License-Identifier: MIT
#include "fuzz/fuzz_case.hpp"

#include <limits>

namespace sluice::fuzz {
namespace {

std::int64_t make_id(Bytes& bytes, int experts) {
  const int choice = bytes.between(0, 15);
  if (choice == 0) return -1;
  if (choice == 1) return experts;  // The first id that is bad.
  if (choice == 2) return std::numeric_limits<std::int64_t>::min();
  if (choice == 3) return (std::int64_t{1} << 32) + bytes.between(0, 3);  // Good if cut to 32 bits.
  if (choice == 4) return -2;
  return bytes.between(0, experts - 1);
}

reference::RankInput make_input(Bytes& bytes, const reference::DispatchProblem& problem,
                                bool with_weights, int mask_form) {
  reference::RankInput input;
  input.tokens = bytes.between(0, problem.max_tokens);
  const auto tokens = static_cast<std::size_t>(input.tokens);
  const std::size_t routes = tokens * static_cast<std::size_t>(problem.top_k);
  input.x.resize(tokens * static_cast<std::size_t>(problem.hidden) * sizeof(std::uint16_t));
  for (std::size_t route = 0; route < routes; ++route) {
    input.topk_ids.push_back(make_id(bytes, problem.experts));
    if (with_weights)
      input.topk_weights.push_back(static_cast<float>(bytes.byte()) * 0.37F - 20.0F);
  }
  const std::size_t mask_size = mask_form == 0 ? 0 : mask_form == 1 ? tokens : routes;
  for (std::size_t i = 0; i < mask_size; ++i) {
    input.mask.push_back(static_cast<std::uint8_t>(bytes.between(0, 4)));
  }
  return input;
}

}  // namespace

reference::DispatchProblem make_problem(Bytes& bytes) {
  reference::DispatchProblem problem;
  problem.ranks = bytes.between(1, 6);
  problem.experts = bytes.between(1, 20);
  problem.top_k = bytes.between(1, bytes.coin() ? 32 : 5);
  problem.hidden = 16;
  problem.max_tokens = bytes.between(1, 7);
  problem.layout = static_cast<Layout>(bytes.between(0, 2));
  problem.expert_alignment = bytes.between(1, 9);
  problem.capacity = bytes.coin() ? bytes.between(0, 12) : 0;
  if (bytes.coin()) {
    for (int expert = 0; expert < problem.experts; ++expert) {
      problem.expert_to_rank.push_back(bytes.between(0, problem.ranks - 1));
    }
  }
  const bool with_weights = bytes.coin();
  const int mask_form = bytes.between(0, 2);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    problem.inputs.push_back(make_input(bytes, problem, with_weights, mask_form));
  }
  return problem;
}

}  // namespace sluice::fuzz
