// SPDX-License-Identifier: MIT
//
// Ranks that are slow or fast at the one place where the order of two things matters.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "bootstrap/group.hpp"
#include "conformance/calls.hpp"
#include "mutants/scenarios.hpp"

namespace sluice::mutants {
namespace {

using base::TestPoint;
using conformance::DispatchCall;
using conformance::Scenario;
using conformance::Step;
using std::chrono::milliseconds;

constexpr int kRounds = 8;  // Above the number of banks, so that all are used again.

Scenario scenario_of(Mode mode, int ranks) {
  Scenario scenario;
  scenario.ranks = ranks;
  scenario.shape = Shape{6, 3, 48, 8};
  scenario.options.mode = mode;
  scenario.options.deadline = std::chrono::seconds(3);
  scenario.options.first_deadline = std::chrono::seconds(3);
  return scenario;
}

std::vector<Step> steps_of(const Scenario& scenario, bool registered_x = false,
                           int rounds = kRounds) {
  std::vector<Step> steps;
  for (int number = 0; number < rounds; ++number) {
    conformance::StepSpec spec;
    spec.tokens = support::TokensKind::full;
    spec.registered_x = registered_x;
    steps.push_back(conformance::prepare_step(scenario, spec, number));
  }
  return steps;
}

// Dispatches only, two in flight: the epoch is the number of the call.
std::string run_pipeline(const Scenario& scenario, const Script& script) {
  const std::vector<Step> steps = steps_of(scenario);
  const ScriptRun run(script);
  return conformance::run_body(
      scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        std::deque<DispatchCall> calls;
        for (std::size_t sent = 0; sent < steps.size() + 1; ++sent) {
          if (sent < steps.size()) {
            calls.emplace_back(communicator, steps[sent], 0, findings);
            calls.back().send();
          }
          if (sent == 0) continue;
          calls[sent - 1].receive();
          calls[sent - 1].check();
        }
      });
}

// Dispatches only, one after the other.
std::string run_calls(const Scenario& scenario, const Script& script, int rounds = kRounds) {
  const std::vector<Step> steps = steps_of(scenario, false, rounds);
  const ScriptRun run(script);
  return conformance::run_body(
      scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        for (const Step& step : steps) {
          DispatchCall call(communicator, step, 0, findings);
          call.whole();
          call.check();
        }
      });
}

// Rank 2 reads an operation only when its peers have sent as far ahead as they can. They are
// allowed two more in latency mode, one in throughput mode: there the wait runs out.
std::string late_reader(Mode mode) {
  return run_pipeline(scenario_of(mode, 3), [](TestPoint point, int rank, int) {
    if (point != TestPoint::before_await || rank != 2) return;
    const int ahead = std::min(count(TestPoint::before_await, 2) + 2, kRounds);
    wait_for(
        [&] {
          return count(TestPoint::after_publish, 0, 2) >= ahead &&
                 count(TestPoint::after_publish, 1, 2) >= ahead;
        },
        milliseconds(100));
  });
}

// Rank 0 writes nothing until rank 2 has, wrongly, gone on without it.
std::string late_writer(Mode mode) {
  return run_calls(scenario_of(mode, 3), [](TestPoint point, int rank, int) {
    if (point != TestPoint::before_payload || rank != 0) return;
    const int epoch = count(TestPoint::before_payload, 0);
    wait_for([&] { return count(TestPoint::before_done, 2) >= epoch; }, milliseconds(20));
  });
}

// Rank 0 goes on from its cell for rank 2 only when rank 2 has read everything that it says.
std::string early_cell(Mode mode) {
  return run_calls(scenario_of(mode, 3), [](TestPoint point, int rank, int peer) {
    if (point != TestPoint::after_publish || rank != 0 || peer != 2) return;
    const int epoch = count(TestPoint::after_publish, 0, 2);
    wait_for([&] { return count(TestPoint::before_done, 2) >= epoch; }, milliseconds(100));
  });
}

// Rank 1 looks at the cell when it has been there for a while: it takes nothing from the doorbell,
// so the cell alone must order the payload. For the thread sanitizer.
std::string cell_alone() {
  return run_calls(
      scenario_of(Mode::latency, 2),
      [](TestPoint point, int rank, int) {
        if (point != TestPoint::before_await || rank != 1) return;
        const int epoch = count(TestPoint::before_await, 1);
        wait_for([&] { return count(TestPoint::after_publish, 0, 1) >= epoch; },
                 milliseconds(2000));
        std::this_thread::sleep_for(milliseconds(2));
      },
      4);
}

// Rank 0 looks at its guard when rank 1 has long told it: what was told alone must order rank 1's
// reading before rank 0's writing. For the thread sanitizer.
std::string told_alone() {
  return run_pipeline(scenario_of(Mode::throughput, 2), [](TestPoint point, int rank, int) {
    if (point != TestPoint::before_guard || rank != 0) return;
    const int epoch = count(TestPoint::before_guard, 0);
    wait_for([&] { return count(TestPoint::before_guard, 1) >= epoch; }, milliseconds(2000));
  });
}

// x is overwritten when the call has returned, which in registered memory must not be before
// rank 2 has read it.
std::string reused_input() {
  Scenario scenario = scenario_of(Mode::throughput, 3);
  scenario.options.registered_bytes = conformance::registered_bytes(scenario);
  const std::vector<Step> steps = steps_of(scenario, true, 4);
  std::atomic<int> overwritten{0};
  const ScriptRun run([&](TestPoint point, int rank, int) {
    if (point != TestPoint::before_read || rank != 2) return;
    const int epoch = count(TestPoint::before_read, 2);
    wait_for([&] { return overwritten.load(std::memory_order_relaxed) >= epoch; },
             milliseconds(50));
  });
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        for (const Step& step : steps) {
          DispatchCall call(communicator, step, 0, findings);
          call.whole();
          const ConstTensorView x = call.x();
          std::memset(const_cast<void*>(x.data), 0,
                      static_cast<std::size_t>(x.shape[0] * x.strides[0]) * size_of(x.dtype));
          if (world.rank() == 0) overwritten.fetch_add(1, std::memory_order_relaxed);
          call.check();
        }
      });
}

// Rank 1's doorbell rings between the two points that surround the cell's store. Nobody else rings
// it then, except rank 1 itself now and then: not in all of 40 rounds.
std::string ring_after_cell() {
  const Scenario scenario = scenario_of(Mode::latency, 2);
  constexpr int kRings = 40;
  const std::vector<Step> steps = steps_of(scenario, false, kRings);
  std::atomic<const std::atomic<std::uint32_t>*> bell{nullptr};
  std::uint32_t before = 0;  // Rank 0's thread only.
  std::atomic<bool> silent{false};
  const ScriptRun run([&](TestPoint point, int rank, int peer) {
    const auto* word = bell.load();
    if (word == nullptr || rank != 0 || peer != 1) return;
    if (point == TestPoint::before_publish) before = word->load(std::memory_order_relaxed);
    if (point == TestPoint::after_publish && word->load(std::memory_order_relaxed) == before) {
      silent.store(true);
    }
  });
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        if (world.rank() == 0) bell.store(&world.group()->control(1).doorbell.word);
        for (const Step& step : steps) {
          DispatchCall call(communicator, step, 0, findings);
          call.whole();
          call.check();
        }
        if (world.rank() != 0) return;
        bell.store(nullptr);
        if (silent.load()) findings.add("a cell was published and nobody was woken after it");
      });
}

}  // namespace

std::vector<TestScenario> protocol_scenarios() {
  return {{"late reader, latency", [] { return late_reader(Mode::latency); }},
          {"late reader, throughput", [] { return late_reader(Mode::throughput); }},
          {"late writer, latency", [] { return late_writer(Mode::latency); }},
          {"late writer, throughput", [] { return late_writer(Mode::throughput); }},
          {"early cell, latency", [] { return early_cell(Mode::latency); }},
          {"early cell, throughput", [] { return early_cell(Mode::throughput); }},
          {"the cell alone", cell_alone},
          {"what was told alone", told_alone},
          {"reused input", reused_input},
          {"ring after cell", ring_after_cell}};
}

}  // namespace sluice::mutants
