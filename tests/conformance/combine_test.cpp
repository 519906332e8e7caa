// SPDX-License-Identifier: MIT
// Semantics 4 and 5: weights, plain sums, extras, dtypes and codecs of combine.
#include "conformance/modes.hpp"

namespace sluice::conformance {
namespace {

class Combine : public LayoutTest {
 protected:
  bool rank_major() const { return layout() == Layout::rank_major; }
  std::vector<Reduce> reduces() const {
    if (rank_major()) return {Reduce::rank};
    return {Reduce::rank, Reduce::single};
  }
  Scenario scenario() const {
    Scenario made = small();
    made.options.combine_codec = CodecKind::f32;
    made.options.permit_single = !rank_major();
    return made;
  }
};

TEST_P(Combine, DtypesAndCodecs) {
  Scenario all = scenario();
  all.shape.hidden = 32;
  const DType dtypes[] = {DType::bf16, DType::f16, DType::f32};
  for (const Reduce reduce : reduces()) {
    int turn = 0;
    for (const CodecKind codec : {CodecKind::bf16, CodecKind::f16, CodecKind::f32}) {
      for (const DType y : dtypes) {
        StepSpec spec;
        spec.reduce = reduce;
        spec.combine_codec = codec;
        spec.y_dtype = y;
        spec.out_dtype = dtypes[turn++ % 3];
        spec.data = turn % 2 == 0 ? support::DataKind::specials : support::DataKind::ordinary;
        all.steps.push_back(spec);
      }
    }
  }
  expect_clean(run(all));
}

TEST_P(Combine, NotFiniteResults) {
  Scenario all = scenario();
  for (const Reduce reduce : reduces()) {
    StepSpec spec;
    spec.reduce = reduce;
    spec.combine_codec = CodecKind::bf16;
    spec.data = support::DataKind::not_finite;
    spec.x_dtype = DType::f32;
    spec.tokens = support::TokensKind::full;
    spec.shared_results = 1;
    all.steps.push_back(spec);
    spec.codec = Codec{CodecKind::f16};
    spec.x_dtype = DType::f16;
    all.steps.push_back(spec);
  }
  expect_clean(run(all));
}

TEST_P(Combine, NotFiniteRowsInFp8) {
  Scenario all = scenario();
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      StepSpec spec;
      spec.codec = Codec{CodecKind::fp8, form, 32};
      spec.data = support::DataKind::not_finite;
      spec.x_dtype = dtype;
      spec.tokens = support::TokensKind::full;
      all.steps.push_back(spec);
    }
  }
  expect_clean(run(all));
}

TEST_P(Combine, WeightsAndPlainSums) {
  Scenario all = scenario();
  for (const Reduce reduce : reduces()) {
    for (const bool at_dispatch : {true, false}) {
      for (const bool at_combine : {false, true}) {
        for (const bool plain : {false, true}) {
          if (rank_major() && (at_combine || plain)) continue;
          StepSpec spec;
          spec.reduce = reduce;
          spec.routing = support::RoutingKind::duplicates;
          spec.weights_at_dispatch = at_dispatch;
          spec.weights_at_combine = at_combine;
          spec.plain_sum = plain;
          spec.combines = 2;
          all.steps.push_back(spec);
          spec.capacity = 5;
          spec.data = support::DataKind::specials;
          all.steps.push_back(spec);
        }
      }
    }
  }
  expect_clean(run(all));
}

TEST_P(Combine, SharedResultsAndBiases) {
  Scenario all = scenario();
  for (const Reduce reduce : reduces()) {
    for (int shared = 0; shared <= 3; ++shared) {
      for (int biases = 0; biases <= kMaxBiases; ++biases) {
        StepSpec spec;
        spec.reduce = reduce;
        spec.shared_results = shared;
        spec.biases = biases;
        spec.routing = support::RoutingKind::sparse;
        spec.out_dtype = biases == 1 ? DType::f32 : DType::bf16;
        spec.data = shared == 2 ? support::DataKind::specials : support::DataKind::ordinary;
        all.steps.push_back(spec);
      }
    }
  }
  expect_clean(run(all));
}

TEST_P(Combine, LossAndRenormalisation) {
  Scenario all = scenario();
  for (const Reduce reduce : reduces()) {
    for (const std::int64_t capacity : {1, 4, 9}) {
      for (const bool renormalize : {true, false}) {
        StepSpec spec;
        spec.reduce = reduce;
        spec.tokens = support::TokensKind::full;
        spec.routing =
            capacity == 4 ? support::RoutingKind::duplicates : support::RoutingKind::distinct;
        spec.capacity = capacity;
        spec.renormalize = renormalize;
        spec.shared_results = 1;
        spec.biases = 1;
        spec.out_dtype = DType::f32;
        all.steps.push_back(spec);
      }
    }
  }
  expect_clean(run(all));
}

INSTANTIATE_TEST_SUITE_P(Sums, Combine, all_layouts(), Combine::name);

}  // namespace
}  // namespace sluice::conformance
