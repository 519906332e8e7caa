// SPDX-License-Identifier: MIT
// Shapes at their edges: R 1 to 16, K 1 to 32, experts that do not divide, ranks without experts,
// odd maps, short and long rows.
#include <fmt/core.h>

#include "conformance/modes.hpp"

namespace sluice::conformance {
namespace {

class Shapes : public LayoutTest {
 protected:
  std::string run_shape(int ranks, const Shape& shape, std::vector<std::int32_t> map = {},
                        YMemory y_memory = YMemory::ordinary) {
    Scenario scenario = small();
    scenario.options.y_memory = y_memory;
    scenario.ranks = ranks;
    scenario.shape = shape;
    scenario.options.expert_to_rank = std::move(map);
    if (y_memory == YMemory::registered) {
      scenario.options.registered_bytes = registered_bytes(scenario);
    }
    scenario.seed = static_cast<std::uint64_t>(ranks * 1000 + shape.hidden + shape.top_k);
    StepSpec spec;
    scenario.steps.push_back(spec);
    spec.routing = support::RoutingKind::duplicates;
    spec.x_dtype = DType::f32;
    scenario.steps.push_back(spec);
    spec.routing = support::RoutingKind::sparse;
    spec.tokens = support::TokensKind::some_zero;
    scenario.steps.push_back(spec);
    return run(scenario);
  }
};

TEST_P(Shapes, Ranks) {
  for (const int ranks : {1, 2, 3, 5, 8, 16}) {
    expect_clean(run_shape(ranks, Shape{16, 4, 16, 6}), fmt::format("R {}", ranks));
    expect_clean(run_shape(ranks, Shape{16, 4, 16, 6}, {}, YMemory::registered),
                 fmt::format("R {}, registered", ranks));
  }
}

TEST_P(Shapes, TopK) {
  for (const int top_k : {1, 2, 9, 31, 32}) {
    expect_clean(run_shape(3, Shape{40, top_k, 16, 5}), fmt::format("K {}", top_k));
  }
}

TEST_P(Shapes, TopKAboveExperts) {
  expect_clean(run_shape(2, Shape{3, 8, 16, 5}));
}

TEST_P(Shapes, ExpertsThatDoNotDivide) {
  for (const int experts : {1, 2, 3, 5, 17}) {  // Below R: some ranks own none.
    expect_clean(run_shape(4, Shape{experts, 2, 32, 6}), fmt::format("E {}", experts));
  }
}

TEST_P(Shapes, OddMaps) {
  // Rank 1 owns nothing; experts of a rank are not neighbours.
  expect_clean(run_shape(4, Shape{9, 3, 32, 6}, {3, 0, 3, 2, 0, 2, 2, 3, 0}));
  // All on the last rank.
  expect_clean(run_shape(3, Shape{5, 3, 32, 6}, {2, 2, 2, 2, 2}));
}

TEST_P(Shapes, Hidden) {
  for (const int hidden : {16, 48, 128, 144, 2048}) {
    expect_clean(run_shape(2, Shape{6, 2, hidden, 4}), fmt::format("H {}", hidden));
  }
}

// Slabs are sized by max_tokens, slots by slot_tokens, which throughput mode does not heed.
TEST_P(Shapes, FewerSlotsThanTokens) {
  Scenario scenario = small();
  scenario.shape.max_tokens = 12;
  scenario.options.slot_tokens = 5;
  for (const support::TokensKind tokens :
       {support::TokensKind::full, support::TokensKind::varied, support::TokensKind::one_rank}) {
    StepSpec spec;
    spec.tokens = tokens;
    spec.combines = 2;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// On GPUs a block's share of the tokens comes in slices, of 32 tokens here: as many bits for every expert as there is shared memory.
TEST_P(Shapes, MoreTokensThanASliceHas) {
  Scenario scenario = small();
  scenario.ranks = 2;
  scenario.shape = Shape{4000, 3, 16, 70};
  scenario.options.block_limit = 1;
  StepSpec spec;
  spec.tokens = support::TokensKind::full;
  scenario.steps.push_back(spec);
  spec.routing = support::RoutingKind::duplicates;
  scenario.steps.push_back(spec);
  expect_clean(run(scenario));
}

TEST_P(Shapes, OneToken) {
  expect_clean(run_shape(4, Shape{8, 8, 16, 1}));
}

INSTANTIATE_TEST_SUITE_P(Edges, Shapes, all_layouts(), Shapes::name);

class LongRows : public LayoutTest {};

TEST_P(LongRows, Hidden7168And7184) {
  for (const int hidden : {7168, 7184}) {
    Scenario scenario = small();
    scenario.ranks = 2;
    scenario.shape = Shape{6, 4, hidden, 12};
    for (const Codec codec : {Codec{CodecKind::bf16}, Codec{CodecKind::fp8, ScaleForm::f32, 128},
                              Codec{CodecKind::fp8, ScaleForm::ue8m0, 64}}) {
      StepSpec spec;
      spec.codec = codec;
      spec.tokens = support::TokensKind::full;
      spec.data = support::DataKind::specials;
      scenario.steps.push_back(spec);
    }
    expect_clean(run(scenario), fmt::format("H {}", hidden));
  }
}

INSTANTIATE_TEST_SUITE_P(Edges, LongRows, all_layouts(), LongRows::name);

}  // namespace
}  // namespace sluice::conformance
