// SPDX-License-Identifier: MIT
//
// Whole steps, checked bit for bit against the reference.
#include "conformance/scenario.hpp"
#include "mutants/scenarios.hpp"

namespace sluice::mutants {
namespace {

using conformance::Scenario;
using conformance::StepSpec;

Scenario base_scenario(Mode mode) {
  Scenario scenario;
  scenario.ranks = 3;
  scenario.shape = Shape{7, 6, 48, 6};
  scenario.options.mode = mode;
  scenario.options.combine_codec = CodecKind::f32;
  scenario.options.permit_single = true;
  scenario.options.deadline = std::chrono::seconds(3);
  scenario.options.first_deadline = std::chrono::seconds(3);
  return scenario;
}

// f32 on the way home and at the end, so that no rounding hides the order of a sum.
StepSpec exact(Layout layout, support::RoutingKind routing) {
  StepSpec spec;
  spec.layout = layout;
  spec.routing = routing;
  spec.tokens = support::TokensKind::full;
  spec.out_dtype = DType::f32;
  return spec;
}

std::vector<StepSpec> steps() {
  using support::RoutingKind;
  std::vector<StepSpec> steps;
  steps.push_back(exact(Layout::expert_major, RoutingKind::distinct));
  steps.push_back(exact(Layout::expert_slab, RoutingKind::duplicates));
  steps.push_back(exact(Layout::rank_major, RoutingKind::sparse));
  steps.push_back(exact(Layout::expert_major, RoutingKind::distinct));
  steps.back().reduce = Reduce::single;
  steps.push_back(exact(Layout::expert_major, RoutingKind::duplicates));
  steps.back().reduce = Reduce::single;
  steps.push_back(exact(Layout::expert_slab, RoutingKind::duplicates));
  steps.back().weights_at_combine = true;
  for (const Layout layout : {Layout::expert_major, Layout::expert_slab, Layout::rank_major}) {
    steps.push_back(exact(layout, RoutingKind::distinct));
    steps.back().capacity = layout == Layout::expert_slab ? 4 : 9;
  }
  steps.push_back(exact(Layout::expert_major, RoutingKind::duplicates));
  steps.back().bad_percent = 25;
  steps.back().mask = support::MaskKind::route;
  steps.push_back(exact(Layout::expert_slab, RoutingKind::distinct));
  steps.back().codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
  steps.back().cached = 1;
  steps.push_back(exact(Layout::expert_major, RoutingKind::sparse));
  steps.back().expert_alignment = 4;
  steps.back().rows_from = conformance::RowsFrom::caller;
  steps.back().zero_padding = true;
  return steps;
}

std::string run_steps(Mode mode) {
  Scenario scenario = base_scenario(mode);
  scenario.steps = steps();
  return conformance::run(scenario);
}

}  // namespace

std::vector<TestScenario> semantics_scenarios() {
  return {{"steps in latency", [] { return run_steps(Mode::latency); }},
          {"steps in throughput", [] { return run_steps(Mode::throughput); }}};
}

}  // namespace sluice::mutants
