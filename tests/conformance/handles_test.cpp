// SPDX-License-Identifier: MIT
// Handles are data: many alive, used in any order, copied, kept in memory of the caller; and the
// pair that training needs: combine with weights home is the backward of dispatch, a cached
// dispatch the backward of combine.
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"

namespace sluice::conformance {
namespace {

class Handles : public LayoutTest {};

TEST_P(Handles, ManyAliveUsedInReverse) {
  Scenario scenario = small();
  std::vector<Step> steps;
  for (int i = 0; i < 12; ++i) {
    StepSpec spec;
    spec.cached = 1;
    spec.combines = 2;
    spec.caller_handle = i % 2 == 1;
    spec.capacity = i % 4 == 3 ? 7 : 0;
    spec.expert_alignment = 1 + i % 3;
    steps.push_back(prepare_step(scenario, spec, i));
  }
  expect_clean(
      run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        std::deque<DispatchCall> dispatches;
        for (const Step& step : steps) {
          dispatches.emplace_back(communicator, step, 0, findings);
          dispatches.back().whole();
          dispatches.back().check();
          dispatches.back().received().release();  // The handle lives on.
        }
        for (int repetition = 0; repetition < 2; ++repetition) {
          for (std::size_t i = steps.size(); i-- > 0;) {
            CombineCall combine(communicator, steps[i], repetition, dispatches[i].handle(),
                                dispatches[i].rows_shape(), findings);
            combine.whole();
            combine.check();
            DispatchCall cached(communicator, steps[i], 1, findings);
            cached.whole(dispatches[i].handle());
            cached.check();
          }
        }
      }));
}

TEST_P(Handles, ACopyIsAsGood) {
  for (const YMemory y_memory : {YMemory::ordinary, YMemory::registered}) {
    Scenario scenario = small();
    scenario.options.y_memory = y_memory;
    scenario.options.registered_bytes = 4 * registered_bytes(scenario);
    StepSpec spec;
    spec.cached = 1;
    spec.combines = 2;
    const Step step = prepare_step(scenario, spec, 0);
    const Step other = prepare_step(scenario, spec, 1);
    expect_clean(
        run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
          const std::size_t bytes = communicator.handle_bytes();
          const support::Tensor memory(DType::u8, {static_cast<std::int64_t>(bytes)});
          {
            DispatchCall first(communicator, step, 0, findings);
            first.whole();
            first.check();
            if (first.handle().bytes() > bytes || first.handle().data() == nullptr) {
              findings.add("a handle larger than handle_bytes()");
              return;
            }
            std::memcpy(memory.view().data, first.handle().data(), first.handle().bytes());
          }
          // The first handle is gone; another dispatch may use its memory.
          run_step(communicator, other, findings);
          const Handle copy(memory.view().data, bytes, memory.view().device);
          DispatchCall cached(communicator, step, 1, findings);
          cached.whole(copy);
          cached.check();
          CombineCall combine(communicator, step, 1, copy, cached.rows_shape(), findings);
          combine.whole();
          combine.check();
        }));
  }
}

// The handle that a cached dispatch returns is as good as the one it was given.
TEST_P(Handles, OfACachedDispatch) {
  for (const YMemory y_memory : {YMemory::ordinary, YMemory::registered}) {
    Scenario scenario = small();
    scenario.options.y_memory = y_memory;
    scenario.options.registered_bytes = 4 * registered_bytes(scenario);
    StepSpec spec;
    spec.cached = 2;
    const Step step = prepare_step(scenario, spec, 0);
    expect_clean(
        run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
          DispatchCall first(communicator, step, 0, findings);
          first.whole();
          DispatchCall second(communicator, step, 1, findings);
          second.whole(first.handle());
          DispatchCall third(communicator, step, 2, findings);
          third.whole(second.handle());
          third.check();
          CombineCall combine(communicator, step, 0, third.handle(), third.rows_shape(), findings);
          combine.whole();
          combine.check();
        }));
  }
}

TEST_P(Handles, PlanThenMove) {
  Scenario scenario = small();
  for (int i = 0; i < 6; ++i) {
    StepSpec spec;
    spec.flow = Flow::plan_then_move;
    spec.cached = 1;
    spec.capacity = i == 4 ? 6 : 0;
    spec.rows_from = i % 2 == 0 ? RowsFrom::caller : RowsFrom::library;
    spec.mask = i == 3 ? support::MaskKind::route : support::MaskKind::none;
    spec.tokens = i == 5 ? support::TokensKind::some_zero : support::TokensKind::varied;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// DispatchOutputs::handle is where a dispatch puts its handle, also when it reads another one.
TEST_P(Handles, ACachedDispatchFillsGivenMemory) {
  Scenario scenario = small();
  StepSpec spec;
  spec.cached = 1;
  spec.caller_handle = true;
  const Step step = prepare_step(scenario, spec, 0);
  expect_clean(
      run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        DispatchCall first(communicator, step, 0, findings);
        first.whole();
        DispatchCall second(communicator, step, 1, findings);
        second.whole(first.handle());
        support::expect_true(findings, kMemory, "the handle is not in the memory given",
                             second.handle().data() == second.outputs().handle.data());
        second.check();
      }));
}

// Layout, alignment and capacity of a cached dispatch are its handle's.
TEST_P(Handles, BringTheirOwnLayout) {
  Scenario scenario = small();
  StepSpec spec;
  spec.layout = layout() == Layout::expert_slab ? Layout::expert_major : Layout::expert_slab;
  spec.expert_alignment = 4;
  spec.capacity = 6;
  spec.cached = 1;
  const Step step = prepare_step(scenario, spec, 0);
  expect_clean(
      run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        DispatchCall first(communicator, step, 0, findings);
        first.whole();
        first.check();
        DispatchCall second(communicator, step, 1, findings);
        DispatchOutputs outputs;
        outputs.report = second.outputs().report;
        second.take(communicator.dispatch(second.x(), first.handle(), {}, outputs));
        second.check();
      }));
}

INSTANTIATE_TEST_SUITE_P(Data, Handles, all_layouts(), Handles::name);

class Autograd : public ModeTest {};

// Dispatch's backward: gradients of rows are summed at home, those of weights sent home. Combine's
// backward: the gradient of out is dispatched along the same handle.
TEST_P(Autograd, WeightsHomeAndCachedDispatch) {
  Scenario scenario = small();
  scenario.options.layout = Layout::rank_major;
  for (int i = 0; i < 4; ++i) {
    StepSpec spec;
    spec.row_weights = true;
    spec.cached = 1;
    spec.combines = 2;
    spec.routing = i == 1 ? support::RoutingKind::duplicates : support::RoutingKind::sparse;
    spec.tokens = i == 2 ? support::TokensKind::one_rank : support::TokensKind::varied;
    spec.flow = i == 3 ? Flow::halves : Flow::whole;
    spec.input_gap = i;
    spec.output_gap = i;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

INSTANTIATE_TEST_SUITE_P(Training, Autograd, both_modes(), Autograd::name);

class Counters : public LayoutTest {};

TEST_P(Counters, RowsPerExpertAndOperations) {
  Scenario scenario = small();
  std::vector<Step> steps;
  for (int i = 0; i < 3; ++i) {
    StepSpec spec;
    spec.capacity = i == 1 ? 3 : 0;
    steps.push_back(prepare_step(scenario, spec, i));
  }
  expect_clean(run_body(scenario, [&](World& world, Communicator& communicator,
                                      support::Findings& findings) {
    std::vector<std::int64_t> total(static_cast<std::size_t>(communicator.local_experts()), 0);
    for (const Step& step : steps) {
      run_step(communicator, step, findings);
      const auto& counts = step.dispatched[0].ranks[static_cast<std::size_t>(world.rank())].counts;
      const Statistics seen = communicator.statistics();
      const std::vector<std::int64_t> now(counts.begin(), counts.end());
      for (std::size_t e = 0; e < total.size(); ++e) total[e] += now[e];
      support::expect_true(findings, kStatistics, "rows_per_expert_step differs",
                           seen.rows_per_expert_step == now);
      support::expect_true(findings, kStatistics, "rows_per_expert_total differs",
                           seen.rows_per_expert_total == total);
    }
    const Statistics seen = communicator.statistics();
    support::expect_equal(findings, kStatistics, "dispatches", 3, seen.dispatches);
    support::expect_equal(findings, kStatistics, "combines", 3, seen.combines);
    support::expect_equal(findings, kStatistics, "sources of wait_ns_per_source", 4,
                          static_cast<std::int64_t>(seen.wait_ns_per_source.size()));
    support::expect_true(findings, kStatistics, "no dispatch bytes were counted",
                         seen.dispatch_wire_bytes > 0);
    support::expect_true(findings, kStatistics, "no combine bytes were counted",
                         seen.combine_wire_bytes > 0);
  }));
}

// The wait for a rank that comes late is booked on that rank. A busy machine may make the others
// later still, so one of many rounds is enough.
TEST_P(Counters, WaitPerSource) {
  Scenario scenario = small();
  StepSpec spec;
  spec.tokens = support::TokensKind::full;
  const Step step = prepare_step(scenario, spec, 0);
  expect_clean(run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        for (int round = 0; round < 5; ++round) {
          if (world.rank() == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(15));
          }
          run_step(communicator, step, findings);
        }
        if (world.rank() == 1) return;
        support::expect_true(findings, kStatistics, "no wait for rank 1, which was late five times",
                             communicator.statistics().wait_ns_per_source[1] > 0);
      }));
}

INSTANTIATE_TEST_SUITE_P(Statistics, Counters, all_layouts(), Counters::name);

}  // namespace
}  // namespace sluice::conformance
