// SPDX-License-Identifier: MIT
#include <fmt/core.h>

#include <algorithm>

#include "conformance/scenario.hpp"
#include "reference/small_float.hpp"

namespace sluice::conformance {

namespace {

using reference::at;
using support::Random;

// What a random number is for; with seed, rank and a count it names the generator.
enum Purpose : std::uint64_t {
  kTokens,
  kData,
  kIds,
  kWeights,
  kMask,
  kResults,
  kCombineWeights,
  kRowWeights,
  kShared,
  kBias
};

// The most tokens of one call.
int tokens_max(const Scenario& scenario) {
  const CommunicatorOptions& options = scenario.options;
  const bool by_slots = options.mode == Mode::latency && options.slot_tokens > 0;
  return by_slots ? options.slot_tokens : scenario.shape.max_tokens;
}

reference::RankInput draw_input(const Scenario& scenario, const StepSpec& spec, std::uint64_t seed,
                                int rank) {
  const Shape& shape = scenario.shape;
  const auto who = static_cast<std::uint64_t>(rank);
  reference::RankInput input;
  input.tokens = support::draw_tokens(spec.tokens, rank, scenario.ranks, tokens_max(scenario),
                                      Random::of(seed, kTokens, who));
  input.x_dtype = spec.x_dtype;
  input.topk_ids = support::draw_ids(spec.routing, input.tokens, shape.top_k, shape.experts,
                                     spec.bad_percent, Random::of(seed, kIds, who));
  if (spec.weights_at_dispatch) {
    input.topk_weights =
        support::draw_weights(input.topk_ids.size(), spec.data, Random::of(seed, kWeights, who));
  }
  input.mask =
      support::draw_mask(spec.mask, input.tokens, shape.top_k, Random::of(seed, kMask, who));
  return input;
}

std::vector<reference::EncodedRow> draw_encoded(const reference::DispatchProblem& problem,
                                                std::int64_t tokens, support::DataKind data,
                                                Random random) {
  const Codec& codec = problem.codec;
  const auto hidden = at(problem.hidden);
  const std::size_t words = reference::scale_words(codec, hidden);
  const std::size_t groups = (hidden + at(codec.group) - 1) / at(codec.group);
  std::vector<reference::EncodedRow> rows(at(tokens));
  for (reference::EncodedRow& row : rows) {
    row.elements = support::draw_codes(hidden, Random(random.next()));
    const bool finite = data != support::DataKind::not_finite;
    // The other NaN, wherever it may be taken for a mark.
    if (!finite)
      std::fill_n(row.elements.begin(), std::min<std::size_t>(hidden, 48), std::byte{0xFF});
    if (codec.scale_form != ScaleForm::ue8m0) {
      row.scales = support::draw_elements(DType::f32, words, data, Random(random.next()));
      if (!finite) std::fill_n(row.scales.begin(), row.scales.size() / 8 * 4, std::byte{0xFF});
      continue;
    }
    row.scales = support::draw_codes(groups, Random(random.next()));
    row.scales.resize(4 * words);  // Bytes that no group uses are zero.
  }
  return rows;
}

void draw_data(reference::DispatchProblem& problem, const StepSpec& spec, std::uint64_t seed,
               std::uint64_t repetition) {
  for (std::size_t rank = 0; rank < problem.inputs.size(); ++rank) {
    reference::RankInput& input = problem.inputs[rank];
    const Random random = Random::of(seed, kData, rank, repetition);
    if (spec.encoded_x != EncodedX::no && problem.codec.kind == CodecKind::fp8) {
      input.encoded = draw_encoded(problem, input.tokens, spec.data, random);
      continue;
    }
    input.x =
        support::draw_elements(spec.x_dtype, at(input.tokens * problem.hidden), spec.data, random);
  }
}

reference::Matrix draw_matrix(const StepSpec& spec, std::size_t elements, DType dtype,
                              Random random) {
  return {dtype, support::draw_elements(dtype, elements, spec.data, random)};
}

reference::CombineInput draw_results(const Step& step, int rank, std::uint64_t repetition) {
  const StepSpec& spec = step.spec;
  const auto who = static_cast<std::uint64_t>(rank);
  const reference::DispatchProblem& problem = step.dispatches[0];
  const reference::RankRows& rows = step.dispatched[0].ranks[at(rank)];
  const auto hidden = at(problem.hidden);
  const std::size_t tokens = at(problem.inputs[at(rank)].tokens);
  reference::CombineInput input;
  input.y = support::draw_elements(spec.y_dtype, rows.rows.size() * hidden, spec.data,
                                   Random::of(step.seed, kResults, who, repetition));
  if (spec.row_weights) {
    input.row_weights = support::draw_weights(rows.local_ids.size(), spec.data,
                                              Random::of(step.seed, kRowWeights, who, repetition));
  }
  if (spec.weights_at_combine) {
    input.weights = support::draw_weights(tokens * at(problem.top_k), spec.data,
                                          Random::of(step.seed, kCombineWeights, who, repetition));
  }
  input.out_dtype = spec.out_dtype;
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(spec.shared_results); ++i) {
    input.shared_results.push_back(
        draw_matrix(spec, tokens * hidden, dtypes[i % 3],
                    Random::of(step.seed, kShared + 100 * i, who, repetition)));
  }
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(spec.biases); ++i) {
    input.biases.push_back(draw_matrix(spec, tokens * hidden, dtypes[(i + 1) % 3],
                                       Random::of(step.seed, kBias + 100 * i, who, repetition)));
  }
  input.renormalize = spec.renormalize;
  return input;
}

}  // namespace

std::vector<int> rank_to_node(int ranks) {
  std::vector<int> nodes;
  for (const int size : support::node_sizes(ranks)) {
    nodes.insert(nodes.end(), at(size), nodes.empty() ? 0 : nodes.back() + 1);
  }
  return nodes;
}

namespace {

void compute(const Scenario* scenario, Step& step) {
  step.dispatched.clear();
  for (const reference::DispatchProblem& problem : step.dispatches) {
    step.dispatched.push_back(reference::dispatch(problem));
  }
  step.combined.clear();
  const bool fresh = step.combines.empty();
  for (int i = 0; i < step.spec.combines; ++i) {
    reference::CombineProblem problem;
    if (fresh && scenario != nullptr) {
      problem.y_dtype = step.spec.y_dtype;
      problem.codec = step.spec.combine_codec.value_or(scenario->options.combine_codec);
      problem.rank_to_node = rank_to_node(scenario->ranks);
      const bool several = problem.rank_to_node.back() > 0;
      problem.reduce = step.spec.reduce.value_or(
          scenario->options.reduce.value_or(several ? Reduce::node : Reduce::rank));
      problem.plain_sum = step.spec.plain_sum;
      step.combines.push_back(problem);
    }
    reference::CombineProblem& now = step.combines[at(i)];
    now.inputs.clear();
    for (int rank = 0; rank < step.dispatches[0].ranks; ++rank) {
      now.inputs.push_back(draw_results(step, rank, static_cast<std::uint64_t>(i)));
    }
    now.lost_ranks = step.spec.lost_ranks;
    step.combined.push_back(reference::combine(step.dispatches[0], step.dispatched[0], now));
  }
}

}  // namespace

Step prepare_step(const Scenario& scenario, const StepSpec& spec, int number) {
  Step step;
  step.spec = spec;
  step.spec.registered_y |= scenario.options.y_memory == YMemory::registered;
  step.spec.registered_y &= !spec.ordinary_y;
  step.seed = Random::of(scenario.seed, static_cast<std::uint64_t>(number)).next();
  reference::DispatchProblem problem;
  problem.ranks = scenario.ranks;
  problem.experts = scenario.shape.experts;
  problem.top_k = scenario.shape.top_k;
  problem.hidden = scenario.shape.hidden;
  problem.max_tokens = scenario.shape.max_tokens;
  problem.expert_to_rank = scenario.options.expert_to_rank;
  problem.layout = spec.layout.value_or(scenario.options.layout);
  problem.codec = spec.codec.value_or(scenario.options.dispatch_codec);
  problem.expert_alignment = spec.expert_alignment;
  problem.capacity = spec.capacity;
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    problem.inputs.push_back(draw_input(scenario, spec, step.seed, rank));
  }
  for (int repetition = 0; repetition <= spec.cached; ++repetition) {
    draw_data(problem, spec, step.seed, static_cast<std::uint64_t>(repetition));
    step.dispatches.push_back(problem);
  }
  step.name = fmt::format(
      "step {} ({}, {}{}, T", number, to_string(problem.layout), to_string(problem.codec.kind),
      problem.codec.kind == CodecKind::fp8
          ? fmt::format("/{}/{}", to_string(problem.codec.scale_form), problem.codec.group)
          : std::string());
  for (const reference::RankInput& input : problem.inputs) {
    step.name += fmt::format(" {}", input.tokens);
  }
  step.name += ")";
  compute(&scenario, step);
  return step;
}

void drop_inputs(Step& step, const std::vector<int>& ranks) {
  for (reference::DispatchProblem& problem : step.dispatches) {
    for (const int rank : ranks) {
      reference::RankInput& input = problem.inputs[at(rank)];
      input = reference::RankInput{};
      input.x_dtype = step.spec.x_dtype;
    }
  }
  compute(nullptr, step);
}

std::vector<std::int64_t> Step::rows_shape(int rank) const {
  const reference::DispatchProblem& problem = dispatches[0];
  const reference::RankRows& rows = dispatched[0].ranks[at(rank)];
  const std::int64_t hidden = problem.hidden;
  if (problem.layout == Layout::expert_slab) {
    const std::int64_t worst = static_cast<std::int64_t>(problem.ranks) * problem.max_tokens;
    return {static_cast<std::int64_t>(rows.local_experts.size()),
            problem.capacity > 0 ? problem.capacity : worst, hidden};
  }
  return {problem.capacity > 0 ? problem.capacity : rows.row_count, hidden};
}

std::size_t registered_bytes(const Scenario& scenario) {
  const Shape& shape = scenario.shape;
  const std::int64_t row = (std::int64_t{shape.hidden} + 64) * 4;
  const std::int64_t worst = static_cast<std::int64_t>(scenario.ranks) * shape.max_tokens;
  const std::int64_t rows = worst * shape.experts + shape.max_tokens;
  return at(4 * row * rows) + (std::size_t{1} << 20U);
}

}  // namespace sluice::conformance
