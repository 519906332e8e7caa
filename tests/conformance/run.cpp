// SPDX-License-Identifier: MIT
#include <chrono>
#include <memory>
#include <thread>

#include "conformance/calls.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {

namespace {

// Ranks drift apart by up to 3 ms before every call.
class Delays {
 public:
  Delays(const Step& step, int rank)
      : on_(step.spec.delays),
        random_(support::Random::of(step.seed, 77, static_cast<std::uint64_t>(rank))) {}

  void pass() {
    if (!on_ || random_.chance(50)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random_.below(3000)));
  }

 private:
  bool on_;
  support::Random random_;
};

void dispatch_once(DispatchCall& call, Flow flow, Delays& delays, support::Findings& findings) {
  delays.pass();
  if (flow == Flow::whole) {
    call.whole();
  } else if (flow == Flow::halves) {
    call.send();
    delays.pass();
    call.receive();
  } else {
    call.plan();
    call.check();
    const Handle planned = call.handle();
    if (!planned.valid()) findings.add("plan returned no valid handle");
    delays.pass();
    call.whole(planned);
  }
  call.check();
}

}  // namespace

std::optional<Communicator> make_communicator(World& world, const Scenario& scenario,
                                              support::Findings& findings) {
  CommunicatorOptions options = scenario.options;
  support::place().adapt(options);
  Result<Communicator> made = Communicator::create(world, scenario.shape, options);
  if (!made.ok()) {
    findings.add("Communicator::create: " + made.status().to_string());
    return std::nullopt;
  }
  return std::optional<Communicator>(std::move(*made));
}

void run_step(Communicator& communicator, const Step& step, support::Findings& findings) {
  Delays delays(step, communicator.rank());
  DispatchCall first(communicator, step, 0, findings);
  dispatch_once(first, step.spec.flow, delays, findings);
  for (int repetition = 1; repetition <= step.spec.cached; ++repetition) {
    DispatchCall cached(communicator, step, repetition, findings);
    delays.pass();
    if (step.spec.flow == Flow::halves) {
      cached.send(first.handle());
      delays.pass();
      cached.receive();
    } else {
      cached.whole(first.handle());
    }
    cached.check();
  }
  for (int repetition = 0; repetition < step.spec.combines; ++repetition) {
    CombineCall combine(communicator, step, repetition, first.handle(), first.rows_shape(),
                        findings);
    delays.pass();
    if (step.spec.flow == Flow::halves) {
      combine.send();
      delays.pass();
      combine.receive();
    } else {
      combine.whole();
    }
    combine.check();
  }
}

std::string run_body(const Scenario& scenario, const CommunicatorBody& body) {
  const auto rank_body = [&](World& world, support::Findings& findings) {
    std::optional<Communicator> communicator = make_communicator(world, scenario, findings);
    if (communicator.has_value()) body(world, *communicator, findings);
  };
  return launcher()(scenario.ranks, rank_body, {}).text();
}

std::string run(const Scenario& scenario) {
  std::vector<Step> steps;
  for (const StepSpec& spec : scenario.steps) {
    steps.push_back(prepare_step(scenario, spec, static_cast<int>(steps.size())));
  }
  return run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
    for (const Step& step : steps) run_step(communicator, step, findings);
  });
}

}  // namespace sluice::conformance
