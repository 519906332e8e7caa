// SPDX-License-Identifier: MIT
// Semantics 1 to 3: routing, masks, bad ids, capacity, alignment, padding.
#include "conformance/modes.hpp"

namespace sluice::conformance {
namespace {

using support::MaskKind;
using support::RoutingKind;
using support::TokensKind;

class Routing : public LayoutTest {
 protected:
  /// Runs one step per variation, and a plain one after each: nothing may linger.
  std::string run_steps(const std::vector<StepSpec>& specs) {
    Scenario scenario = small();
    for (const StepSpec& spec : specs) {
      scenario.steps.push_back(spec);
      scenario.steps.push_back(StepSpec{});
    }
    return run(scenario);
  }
};

TEST_P(Routing, NoTokens) {
  std::vector<StepSpec> specs(3);
  specs[0].tokens = TokensKind::all_zero;
  specs[1].tokens = TokensKind::some_zero;
  specs[2].tokens = TokensKind::one_rank;
  expect_clean(run_steps(specs));
}

TEST_P(Routing, NoRoutes) {
  StepSpec spec;
  spec.tokens = TokensKind::full;
  spec.routing = RoutingKind::none;
  StepSpec with_extras = spec;
  with_extras.shared_results = 1;
  with_extras.biases = 2;
  with_extras.data = support::DataKind::specials;
  expect_clean(run_steps({spec, with_extras}));
}

TEST_P(Routing, HotExpertAndDuplicates) {
  std::vector<StepSpec> specs(4);
  specs[0].routing = RoutingKind::hot;
  specs[1].routing = RoutingKind::only_hot;
  specs[2].routing = RoutingKind::duplicates;
  specs[3].routing = RoutingKind::zipf;
  for (StepSpec& spec : specs) spec.tokens = TokensKind::full;
  specs[2].data = support::DataKind::specials;
  expect_clean(run_steps(specs));
}

TEST_P(Routing, MasksAndIds) {
  std::vector<StepSpec> specs;
  for (const DType ids : {DType::i32, DType::i64}) {
    for (const MaskKind mask : {MaskKind::none, MaskKind::token, MaskKind::route}) {
      StepSpec spec;
      spec.tokens = TokensKind::full;
      spec.ids_dtype = ids;
      spec.mask = mask;
      spec.bad_percent = 20;
      spec.input_gap = 5;
      specs.push_back(spec);
    }
  }
  expect_clean(run_steps(specs));
}

TEST_P(Routing, Capacity) {
  std::vector<StepSpec> specs;
  for (const std::int64_t capacity : {1, 3, 7, 20, 1000}) {
    StepSpec spec;
    spec.tokens = TokensKind::full;
    spec.capacity = capacity;
    spec.renormalize = capacity != 7;
    spec.rows_from = RowsFrom::caller;
    specs.push_back(spec);
    spec.routing = RoutingKind::duplicates;
    spec.data = support::DataKind::specials;
    spec.rows_from = RowsFrom::library;
    specs.push_back(spec);
  }
  expect_clean(run_steps(specs));
}

TEST_P(Routing, AlignmentAndPadding) {
  std::vector<StepSpec> specs;
  for (const std::int64_t alignment : {1, 4, 7, 128}) {
    for (const bool zero : {false, true}) {
      StepSpec spec;
      spec.expert_alignment = alignment;
      spec.zero_padding = zero;
      spec.rows_from = RowsFrom::caller;
      spec.spare_rows = 3;
      spec.codec = Codec{CodecKind::bf16};
      specs.push_back(spec);
      spec.codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
      spec.output_gap = 9;
      specs.push_back(spec);
      spec.capacity = 11;
      specs.push_back(spec);
    }
  }
  expect_clean(run_steps(specs));
}

TEST_P(Routing, LayoutOfTheCall) {
  std::vector<StepSpec> specs;
  for (const Layout layout :
       {Layout::rank_major, Layout::expert_slab, Layout::expert_major, Layout::rank_major}) {
    StepSpec spec;
    spec.layout = layout;
    spec.cached = 1;
    specs.push_back(spec);
  }
  expect_clean(run_steps(specs));
}

INSTANTIATE_TEST_SUITE_P(Semantics, Routing, all_layouts(), Routing::name);

}  // namespace
}  // namespace sluice::conformance
