// SPDX-License-Identifier: MIT
// Halves, operations in flight, interleaved kinds, and ranks that drift apart.
#include <fmt/core.h>

#include <chrono>
#include <deque>
#include <thread>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"

namespace sluice::conformance {
namespace {

class Order : public LayoutTest {
 protected:
  std::vector<Step> prepare(const Scenario& scenario, int count, int cached = 0) {
    std::vector<Step> steps;
    for (int i = 0; i < count; ++i) {
      StepSpec spec;
      spec.registered_x = scenario.options.y_memory == YMemory::registered;
      spec.cached = cached;
      spec.combines = 2;
      spec.routing = i % 3 == 1 ? support::RoutingKind::sparse : support::RoutingKind::distinct;
      spec.tokens = i % 4 == 3 ? support::TokensKind::some_zero : support::TokensKind::varied;
      steps.push_back(prepare_step(scenario, spec, i));
    }
    return steps;
  }
};

void sleep_us(std::int64_t us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// Sends as many operations of a kind ahead as the communicator allows.
void run_in_flight(Communicator& communicator, const std::vector<Step>& steps, std::size_t depth,
                   std::int64_t receive_delay_us, support::Findings& findings) {
  std::deque<DispatchCall> dispatches;
  for (std::size_t i = 0; i < steps.size() + depth - 1; ++i) {
    if (i < steps.size()) {
      dispatches.emplace_back(communicator, steps[i], 0, findings);
      dispatches.back().send();
    }
    if (i + 1 < depth) continue;
    sleep_us(receive_delay_us);
    dispatches[i + 1 - depth].receive();
    dispatches[i + 1 - depth].check();
  }
  std::deque<CombineCall> combines;
  for (std::size_t i = 0; i < steps.size() + depth - 1; ++i) {
    if (i < steps.size()) {
      combines.emplace_back(communicator, steps[i], 0, dispatches[i].handle(),
                            dispatches[i].rows_shape(), findings);
      combines.back().send();
    }
    if (i + 1 < depth) continue;
    sleep_us(receive_delay_us);
    combines[i + 1 - depth].receive();
    combines[i + 1 - depth].check();
  }
}

TEST_P(Order, InFlight) {
  for (const std::size_t depth : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
    for (const YMemory y_memory : {YMemory::ordinary, YMemory::registered}) {
      constexpr int kSteps = 9;
      Scenario scenario = small();
      scenario.options.in_flight = static_cast<int>(depth);
      scenario.options.y_memory = y_memory;
      scenario.options.registered_bytes = kSteps * registered_bytes(scenario);
      const std::vector<Step> steps = prepare(scenario, kSteps);
      expect_clean(run_body(scenario,
                            [&](World&, Communicator& communicator, support::Findings& findings) {
                              run_in_flight(communicator, steps, depth, 0, findings);
                            }),
                   fmt::format("in flight {}, y_memory {}", depth, static_cast<int>(y_memory)));
    }
  }
}

TEST_P(Order, OneRankDelaysEveryReceiveHalf) {
  Scenario scenario = small();
  const std::vector<Step> steps = prepare(scenario, 8);
  expect_clean(run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        run_in_flight(communicator, steps, 2, world.rank() == 2 ? 2000 : 0, findings);
      }));
}

// Dispatch i + 1 is sent before combine i, and received after it.
TEST_P(Order, KindsInterleave) {
  Scenario scenario = small();
  const std::vector<Step> steps = prepare(scenario, 10);
  expect_clean(run_body(scenario,
                        [&](World& world, Communicator& communicator, support::Findings& findings) {
                          std::deque<DispatchCall> dispatches;
                          dispatches.emplace_back(communicator, steps[0], 0, findings);
                          dispatches[0].send();
                          for (std::size_t i = 0; i < steps.size(); ++i) {
                            dispatches[i].receive();
                            dispatches[i].check();
                            if (i + 1 < steps.size()) {
                              dispatches.emplace_back(communicator, steps[i + 1], 0, findings);
                              dispatches.back().send();
                            }
                            CombineCall combine(communicator, steps[i], 0, dispatches[i].handle(),
                                                dispatches[i].rows_shape(), findings);
                            combine.send();
                            if (world.rank() == static_cast<int>(i) % world.size()) sleep_us(1500);
                            combine.receive();
                            combine.check();
                          }
                        }));
}

TEST_P(Order, RandomDelays) {
  Scenario scenario = small();
  for (int i = 0; i < 10; ++i) {
    StepSpec spec;
    spec.delays = true;
    spec.flow = i % 2 == 0 ? Flow::whole : Flow::halves;
    spec.tokens = i % 3 == 0 ? support::TokensKind::one_rank : support::TokensKind::varied;
    spec.combines = 1 + i % 2;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// An engine may divide its work otherwise for few tokens than for many, on every rank for itself.
TEST_P(Order, FewAndManyTokens) {
  Scenario scenario = small();
  scenario.shape.max_tokens = 144;  // More blocks than for few.
  using support::TokensKind;
  for (const TokensKind tokens : {TokensKind::full, TokensKind::some_zero, TokensKind::one_rank,
                                  TokensKind::full, TokensKind::all_zero, TokensKind::varied}) {
    StepSpec spec;
    spec.tokens = tokens;
    spec.combines = 2;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// What else a call with many tokens may ask for.
TEST_P(Order, ManyTokensInOtherWays) {
  Scenario scenario = small();
  scenario.shape = Shape{16, 8, 528, 72};
  using support::RoutingKind;
  for (const RoutingKind routing :
       {RoutingKind::duplicates, RoutingKind::only_hot, RoutingKind::sparse}) {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    spec.routing = routing;
    spec.weights_at_combine = routing != RoutingKind::sparse;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
  scenario.options.block_limit = 3;
  expect_clean(run(scenario));
}

// As many tokens as a call of the latency mode may have, and more routes than a block has threads.
TEST_P(Order, AsManyTokensAsThereMayBe) {
  Scenario scenario = small();
  scenario.shape = Shape{256, 8, 256, 512};
  scenario.options.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 128};
  using support::TokensKind;
  for (const TokensKind tokens : {TokensKind::full, TokensKind::varied, TokensKind::full}) {
    StepSpec spec;
    spec.tokens = tokens;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// More records than warps, of rows long enough for the kernels that are made for many tokens: waits of one
// record must not trouble the next.
TEST_P(Order, RecordsOneAfterTheOther) {
  Scenario scenario = small();
  scenario.shape = Shape{256, 8, 1024, 96};
  scenario.options.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 128};
  for (int i = 0; i < 4; ++i) {
    StepSpec spec;
    spec.delays = i % 2 == 1;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// Without dispatches in between nothing but combine's own cells tells that a bank is free.
TEST_P(Order, OnlyCombines) {
  Scenario scenario = small();
  StepSpec spec;
  spec.combines = 12;
  spec.routing = support::RoutingKind::sparse;
  scenario.steps = {spec};
  expect_clean(run(scenario));
  scenario.steps[0].delays = true;
  scenario.steps[0].flow = Flow::halves;
  expect_clean(run(scenario));
}

TEST_P(Order, OnlyCachedDispatches) {
  Scenario scenario = small();
  StepSpec spec;
  spec.cached = 12;
  spec.combines = 0;
  spec.routing = support::RoutingKind::sparse;
  scenario.steps = {spec};
  expect_clean(run(scenario));
  scenario.steps[0].delays = true;
  expect_clean(run(scenario));
}

// Records of one call are shorter than those of the next, in the same places: of neither may anything be taken for the other's.
// All tokens go to all ranks, so that rows lie next to each other.
TEST_P(Order, CodecsThatChange) {
  Scenario scenario = small();
  scenario.shape = Shape{4, 4, 1024, 24};
  scenario.options.in_flight = 1;
  scenario.options.dispatch_codec = Codec{CodecKind::f32};
  scenario.options.combine_codec = CodecKind::f32;
  // More often than there are places, of each kind.
  for (int i = 0; i < 21; ++i) {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    spec.reduce = Reduce::rank;
    spec.x_dtype = spec.y_dtype = spec.out_dtype = DType::f32;
    if (i / 7 == 1) {
      spec.codec = Codec{CodecKind::bf16};
      spec.combine_codec = CodecKind::bf16;
    }
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

// A rank to which and from which nothing ever goes may not run ahead of the others' banks.
TEST_P(Order, AnIdleRankIsSlow) {
  Scenario scenario = small();
  scenario.options.expert_to_rank = {0, 1, 2, 0, 1, 2, 0, 1};  // rank 3 owns nothing
  std::vector<Step> steps;
  for (int i = 0; i < 12; ++i) {
    StepSpec spec;
    spec.tokens = support::TokensKind::some_zero;
    steps.push_back(prepare_step(scenario, spec, i));
  }
  expect_clean(run_body(scenario,
                        [&](World& world, Communicator& communicator, support::Findings& findings) {
                          for (const Step& step : steps) {
                            if (world.rank() == 3) sleep_us(2000);
                            run_step(communicator, step, findings);
                          }
                        }));
}

INSTANTIATE_TEST_SUITE_P(Protocol, Order, all_layouts(), Order::name);

class Several : public ModeTest {};

// Two communicators of different shapes on one world, their calls interleaved.
TEST_P(Several, CommunicatorsAtOnce) {
  const Scenario first = small();
  Scenario second = small();
  second.seed = 9;
  second.shape = Shape{5, 2, 128, 6};
  second.options.layout = Layout::rank_major;
  second.options.mode = Mode::automatic;
  std::vector<Step> first_steps;
  std::vector<Step> second_steps;
  for (int i = 0; i < 5; ++i) {
    first_steps.push_back(prepare_step(first, StepSpec{}, i));
    second_steps.push_back(prepare_step(second, StepSpec{}, i));
  }
  expect_clean(
      run_body(first, [&](World& world, Communicator& communicator, support::Findings& findings) {
        std::optional<Communicator> other = make_communicator(world, second, findings);
        if (!other.has_value()) return;
        for (std::size_t i = 0; i < first_steps.size(); ++i) {
          DispatchCall a(communicator, first_steps[i], 0, findings);
          DispatchCall b(*other, second_steps[i], 0, findings);
          a.send();
          b.send();
          // Ranks need not agree on the order of two communicators' calls.
          if (world.rank() % 2 == 0) {
            a.receive();
            b.receive();
          } else {
            b.receive();
            a.receive();
          }
          a.check();
          b.check();
          CombineCall c(*other, second_steps[i], 0, b.handle(), b.rows_shape(), findings);
          CombineCall d(communicator, first_steps[i], 0, a.handle(), a.rows_shape(), findings);
          c.whole();
          d.whole();
          c.check();
          d.check();
        }
      }));
}

// Worlds made by split, each with a communicator, working at the same time as the whole.
TEST_P(Several, WorldsAtOnce) {
  const Scenario whole = small();
  Scenario half = small();
  half.ranks = 2;
  half.seed = 5;
  const Step whole_step = prepare_step(whole, StepSpec{}, 0);
  const Step half_step = prepare_step(half, StepSpec{}, 1);
  expect_clean(
      run_body(whole, [&](World& world, Communicator& communicator, support::Findings& findings) {
        // Keys turn the order of ranks around.
        Result<World> part = world.split(world.rank() / 2, -world.rank());
        if (!part.ok()) {
          findings.add("split: " + part.status().to_string());
          return;
        }
        if (part->rank() != 1 - world.rank() % 2) findings.add("split: wrong rank");
        std::optional<Communicator> small_one = make_communicator(*part, half, findings);
        if (!small_one.has_value()) return;
        run_step(communicator, whole_step, findings);
        run_step(*small_one, half_step, findings);
        run_step(communicator, whole_step, findings);
      }));
}

// Communicators come and go; the world may end before its communicator.
TEST_P(Several, OneAfterTheOther) {
  const Scenario scenario = small();
  const Step step = prepare_step(scenario, StepSpec{}, 0);
  expect_clean(run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        for (int i = 0; i < 4; ++i) {
          std::optional<Communicator> next = make_communicator(world, scenario, findings);
          if (!next.has_value()) return;
          run_step(*next, step, findings);
          const Status met = world.barrier();
          if (!met.ok()) findings.add("barrier: " + met.to_string());
        }
        run_step(communicator, step, findings);
      }));
}

INSTANTIATE_TEST_SUITE_P(Protocol, Several, both_modes(), Several::name);

}  // namespace
}  // namespace sluice::conformance
