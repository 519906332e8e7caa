// SPDX-License-Identifier: MIT
//
// A rank that refuses, differs, leaves or is late: what the others report and keep of it.
#include <fmt/core.h>
#include <algorithm>

#include <atomic>

#include "conformance/calls.hpp"
#include "faults/round.hpp"
#include "mutants/scenarios.hpp"

namespace sluice::mutants {
namespace {

using base::TestPoint;
using conformance::DispatchCall;
using conformance::Scenario;
using conformance::Step;
using std::chrono::milliseconds;
using support::Findings;

constexpr int kOdd = 2;  // The rank that is not like the others.

Scenario scenario_of(Mode mode) {
  Scenario scenario;
  scenario.ranks = 3;
  scenario.shape = Shape{6, 3, 48, 8};
  scenario.options.mode = mode;
  scenario.options.deadline = std::chrono::seconds(3);
  scenario.options.first_deadline = std::chrono::seconds(3);
  return scenario;
}

Step step_of(const Scenario& scenario, support::RoutingKind routing) {
  conformance::StepSpec spec;
  spec.tokens = support::TokensKind::full;
  spec.routing = routing;
  return conformance::prepare_step(scenario, spec, 0);
}

void expect_member(Findings& findings, const char* what, bool expected, const RankSet& set) {
  if (set.contains(kOdd) == expected) return;
  findings.add(fmt::format("{}: rank {} expected {}, seen {}", what, kOdd, expected, !expected));
}

// A cached dispatch that one rank refuses: its rows are zeroed.
void check_zeroed(Communicator& communicator, const Handle& handle, ConstTensorView x,
                  Findings& findings) {
  support::Tensor rows(DType::bf16, {handle.rows(), communicator.shape().hidden});
  DispatchOutputs outputs;
  outputs.rows = rows.view();
  const Received received = communicator.dispatch(x, handle, {}, outputs);
  if (!received.status.ok()) findings.add(received.status.to_string());
  expect_member(findings, "report.refused", true, received.report.refused);
  std::vector<std::int32_t> sources(static_cast<std::size_t>(handle.rows()) * 3);
  const Status found = handle.row_sources(TensorView(sources.data(), DType::i32, handle.rows(), 3));
  if (!found.ok()) findings.add(found.to_string());
  for (std::int64_t row = 0; row < handle.rows(); ++row) {
    if (sources[static_cast<std::size_t>(row) * 3] != kOdd) continue;
    const std::byte* bytes = rows.row(row);
    for (int i = 0; i < communicator.shape().hidden * 2; ++i) {
      if (bytes[i] == std::byte{0}) continue;
      findings.add(fmt::format("row {} of the rank that refused is not zero", row));
      return;
    }
  }
}

std::string refusal(Mode mode) {
  const Scenario scenario = scenario_of(mode);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  return conformance::run_body(scenario,
                               [&](World& world, Communicator& communicator, Findings& findings) {
                                 DispatchCall call(communicator, step, 0, findings);
                                 call.whole();
                                 call.check();
                                 ConstTensorView x = call.x();
                                 if (world.rank() != kOdd) {
                                   check_zeroed(communicator, call.handle(), x, findings);
                                   return;
                                 }
                                 x.dtype = DType::i32;
                                 if (communicator.dispatch(x, call.handle()).status.ok())
                                   findings.add("not refused");
                               });
}

std::string other_codec() {
  const Scenario scenario = scenario_of(Mode::latency);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  return conformance::run_body(scenario, [&](World& world, Communicator& communicator,
                                             Findings& findings) {
    DispatchCall call(communicator, step, 0, findings);
    DispatchOptions options = call.options();
    if (world.rank() == kOdd) options.codec = Codec{CodecKind::f16};
    const Received received = communicator.dispatch(call.x(), call.ids(), call.weights(), options);
    if (world.rank() != kOdd) {
      expect_member(findings, "report.mismatched", true, received.report.mismatched);
    }
  });
}

// The odd rank uses another handle, along which it sends nothing.
std::string other_handle() {
  const Scenario scenario = scenario_of(Mode::latency);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  const Step empty = step_of(scenario, support::RoutingKind::none);
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, Findings& findings) {
        DispatchCall call(communicator, step, 0, findings);
        call.whole();
        DispatchCall other(communicator, empty, 0, findings);
        other.whole();
        const Handle& along = world.rank() == kOdd ? other.handle() : call.handle();
        const Received received = communicator.dispatch(call.x(), along);
        if (world.rank() != kOdd) {
          expect_member(findings, "report.mismatched", true, received.report.mismatched);
        }
      });
}

// The odd rank's copy of the handle has lost its routes: it is of the same dispatch, but sends
// nothing along it.
std::string damaged_handle() {
  const Scenario scenario = scenario_of(Mode::latency);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, Findings& findings) {
        DispatchCall call(communicator, step, 0, findings);
        call.whole();
        const ConstTensorView ids = call.handle().topk_ids();
        if (world.rank() == kOdd) {
          std::fill_n(static_cast<std::int32_t*>(const_cast<void*>(ids.data)),
                      ids.shape[0] * ids.shape[1], -1);
        }
        const Received received = communicator.dispatch(call.x(), call.handle());
        if (world.rank() != kOdd) {
          expect_member(findings, "report.mismatched", true, received.report.mismatched);
        }
      });
}

// One rank leaves when its cells and rows lie everywhere.
std::string left(Mode mode) {
  const faults::Terms terms{3, mode, Layout::expert_major, false};
  const auto body = [&](World& world, Findings& findings) {
    CommunicatorOptions options = faults::options_of(terms);
    Result<Communicator> made = Communicator::create(world, faults::shape_of(terms), options);
    if (!made) {
      findings.add(made.status().to_string());
      return;
    }
    faults::Member member(terms, *made, findings);
    for (int round = 0; round < 12; ++round) {
      if (round == 7 && world.rank() == kOdd) break;
      const faults::RoundResult result = member.run(faults::make_round(terms, round));
      expect_member(findings, "report.missing", round >= 7, result.combine_missing);
    }
    const Status gone = world.leave(std::chrono::seconds(20));
    if (!gone.ok()) findings.add("leave: " + gone.to_string());
  };
  support::RunOptions run_options;
  run_options.leave = false;
  return support::run_as_threads(terms.ranks, body, run_options).text();
}

// The odd rank misses a deadline: it stays missing, and nobody waits for it a second time.
std::string late() {
  const Scenario scenario = scenario_of(Mode::latency);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  constexpr int kLateEpoch = 3;
  constexpr int kLastEpoch = 5;
  std::atomic<int> ended{0};  // Peers whose last operation has ended.
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, Findings& findings) {
        DispatchCall call(communicator, step, 0, findings);
        DispatchOptions options = call.options();
        std::int64_t waited_ns = 0;
        for (int epoch = 1; epoch <= kLastEpoch; ++epoch) {
          if (epoch >= kLateEpoch) options.deadline = milliseconds(200);
          if (epoch == kLateEpoch && world.rank() == kOdd) {
            wait_for([&] { return ended.load() == 2; }, milliseconds(20000));
          }
          const Received received =
              communicator.dispatch(call.x(), call.ids(), call.weights(), options);
          if (world.rank() == kOdd || epoch < kLateEpoch) continue;
          expect_member(findings, "report.missing", true, received.report.missing);
          const std::int64_t now_ns = communicator.statistics().wait_ns_per_source[kOdd];
          if (epoch == kLateEpoch) waited_ns = now_ns;
          if (now_ns != waited_ns) findings.add("somebody waited again for a rank given up");
          if (epoch == kLastEpoch) ended.fetch_add(1);
        }
      });
}

// The odd rank is given up between its peers' cells and its reading: their rows may be others by
// then, so it must find out and drop them.
std::string given_up_while_reading() {
  const Scenario scenario = scenario_of(Mode::latency);
  const Step step = step_of(scenario, support::RoutingKind::distinct);
  constexpr int kSlowEpoch = 3;
  std::atomic<int> ended{0};  // Peers that have given the odd rank up.
  const ScriptRun run([&](TestPoint point, int rank, int) {
    if (point != TestPoint::before_read || rank != kOdd) return;
    if (count(TestPoint::before_read, kOdd) != kSlowEpoch) return;
    wait_for([&] { return ended.load() == 2; }, milliseconds(20000));
  });
  return conformance::run_body(
      scenario, [&](World& world, Communicator& communicator, Findings& findings) {
        DispatchCall call(communicator, step, 0, findings);
        DispatchOptions options = call.options();
        const bool odd = world.rank() == kOdd;
        for (int epoch = 1; epoch <= (odd ? kSlowEpoch : kSlowEpoch + 1); ++epoch) {
          if (epoch > kSlowEpoch) options.deadline = milliseconds(200);
          const Received received =
              communicator.dispatch(call.x(), call.ids(), call.weights(), options);
          if (odd && epoch == kSlowEpoch && !received.report.missing.contains(0)) {
            findings.add("rows of a rank that had given this one up were kept");
          }
          if (epoch > kSlowEpoch) ended.fetch_add(1);
        }
      });
}

}  // namespace

std::vector<TestScenario> absence_scenarios() {
  return {{"refusal, latency", [] { return refusal(Mode::latency); }},
          {"refusal, throughput", [] { return refusal(Mode::throughput); }},
          {"another codec", other_codec},
          {"another handle", other_handle},
          {"a damaged handle", damaged_handle},
          {"left, latency", [] { return left(Mode::latency); }},
          {"left, throughput", [] { return left(Mode::throughput); }},
          {"late", late},
          {"given up while reading", given_up_while_reading}};
}

}  // namespace sluice::mutants
