// SPDX-License-Identifier: MIT
// Calls that were captured into a CUDA graph, replayed with other data each time, beside calls that were not; and many calls on
// two streams, of which none is waited for.
#include <fmt/core.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"
#include "support/gpu_place.hpp"

namespace sluice::conformance {
namespace {

constexpr int kReplays = 5;
#if defined(SLUICE_RANKS_ARE_PROCESSES)
constexpr bool kAlone = true;
#else
constexpr bool kAlone = false;
#endif

/// Where the calls of a graph are captured, in turn: nothing but the order of the calls tells one of them to come after the other.
struct Lanes {
  support::Place& first;  // The capture begins here.
  support::Place& second;
  bool are_apart() const { return &first != &support::place(); }
};

/// The calls of one graph: `depth` dispatches, then as many combines of them.
class Captured {
 public:
  /// steps[i]: of the i-th dispatch and its combine, which run once as plain calls, and then are captured.
  Captured(Communicator& communicator, const std::vector<Step>& steps, std::size_t depth,
           bool halves, const Lanes& lanes, support::Findings& findings)
      : communicator_(communicator),
        findings_(findings),
        lanes_(lanes),
        streams_{lanes.first.stream(), lanes.second.stream()} {
    for (std::size_t i = 0; i < depth; ++i) {
      DispatchCall& dispatch = dispatches_.emplace_back(communicator, steps[i], 0, findings);
      dispatch.whole();
      dispatch.check();
      CombineCall& combine = combines_.emplace_back(communicator, steps[i], 0, dispatch.handle(),
                                                    dispatch.rows_shape(), findings);
      combine.whole();
      combine.check();
    }
    DispatchCall beside(communicator, steps[0], 0, findings);
    Received received;
    lanes.first.begin_capture(kAlone);
    const bool two = &lanes.first != &lanes.second;
    if (two) lanes.second.follow(lanes.first);
    if (halves) {
      capture_halves();
    } else {
      capture(lanes.are_apart() ? [&] { received = beside.queue(support::place().stream()); }
                                : std::function<void()>());
    }
    if (two) lanes.first.follow(lanes.second);
    replay_ = lanes.first.end_capture();
    for (std::size_t i = 0; i < depth; ++i) {
      findings.set_context(fmt::format("capture of call {}: ", i));
      support::expect_true(findings, kRefusal, received_[i].status.to_string(),
                           received_[i].status.ok());
      support::expect_true(findings, kRefusal, results_[i].status.to_string(),
                           results_[i].status.ok());
      // What the library lent stays where it is for as long as there may be a replay.
      received_[i].release();
    }
    if (received.epoch != 0) {
      beside.take(std::move(received));
      beside.check();
    }
  }

  /// With the data of steps[i] in place of those of its i-th dispatch and combine, behind a plain dispatch of `beside`: the host puts
  /// all of it on the stream without waiting. (What is replayed again has the results of the first time there already.)
  void replay(const std::vector<const Step*>& steps, const Step& beside, int times) {
    std::deque<DispatchCall> dispatches;
    std::deque<CombineCall> combines;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      dispatches.emplace_back(communicator_, *steps[i], 0, findings_).load(dispatches_[i]);
      combines
          .emplace_back(communicator_, *steps[i], 0, dispatches_[i].handle(),
                        dispatches_[i].rows_shape(), findings_)
          .load(combines_[i]);
    }
    DispatchCall before(communicator_, beside, 0, findings_);
    support::Place& place = support::place();
    Received received = before.queue(place.stream());
    if (lanes_.are_apart()) lanes_.first.follow(place);
    for (int i = 0; i < times; ++i) replay_();
    if (lanes_.are_apart()) place.follow(lanes_.first);
    before.take(std::move(received));
    before.check();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      dispatches[i].unload(dispatches_[i], received_[i]);
      dispatches[i].check();
      combines[i].unload(combines_[i], results_[i]);
      combines[i].check();
    }
  }

 private:
  void* next_stream() { return streams_[turn_++ % streams_.size()]; }
  /// The options, or outputs, of a half, for the stream whose turn it is.
  template <typename T>
  T on_next_stream(T of_half) {
    of_half.stream = next_stream();
    return of_half;
  }
  /// between: called once amid them, if there is anything.
  void capture(const std::function<void()>& between) {
    for (std::size_t i = 0; i < dispatches_.size(); ++i) {
      received_.push_back(dispatches_[i].queue(next_stream()));
      if (i == 0 && between) between();
      results_.push_back(combines_[i].queue(next_stream()));
      ++turn_;  // The next dispatch follows on the stream of this combine.
    }
  }
  /// All are sent before the first is received.
  void capture_halves() {
    std::vector<DispatchTicket> dispatch_tickets;
    for (const DispatchCall& d : dispatches_) {
      dispatch_tickets.push_back(
          communicator_.send_dispatch(d.x(), d.ids(), d.weights(), on_next_stream(d.options())));
    }
    for (std::size_t i = 0; i < dispatches_.size(); ++i) {
      received_.push_back(communicator_.receive_dispatch(dispatch_tickets[i],
                                                         on_next_stream(dispatches_[i].outputs())));
    }
    std::vector<CombineTicket> combine_tickets;
    for (std::size_t i = 0; i < combines_.size(); ++i) {
      const CombineCall& c = combines_[i];
      combine_tickets.push_back(
          communicator_.send_combine(c.y(), received_[i].handle, on_next_stream(c.options())));
    }
    for (std::size_t i = 0; i < combines_.size(); ++i) {
      results_.push_back(communicator_.receive_combine(combine_tickets[i],
                                                       on_next_stream(combines_[i].outputs())));
    }
  }

  Communicator& communicator_;
  support::Findings& findings_;
  const Lanes lanes_;
  const std::array<void*, 2> streams_;
  std::size_t turn_ = 0;
  std::deque<DispatchCall> dispatches_;
  std::deque<CombineCall> combines_;
  std::vector<Received> received_;
  std::vector<CombineResult> results_;
  std::function<void()> replay_;
};

class Graphs : public LayoutTest {
 protected:
  /// Of a capture: that of the plain calls; that and another; two others.
  enum class Streams { one, two, apart };
  /// `depth` operations of a kind in a graph; by halves, or each as one call.
  static void expect_replays(const Scenario& scenario, const StepSpec& first, std::size_t depth,
                             bool halves, Streams streams = Streams::one) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < depth * (kReplays + 2); ++i) {
      StepSpec spec = first;
      if (i % 3 == 1) spec.routing = support::RoutingKind::sparse;
      steps.push_back(prepare_step(scenario, spec, static_cast<int>(i)));
    }
    expect_clean(run_body(
        scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
          const std::unique_ptr<support::Place> others[] = {
              support::gpu_place(world.rank(), support::longest_wait()),
              support::gpu_place(world.rank(), support::longest_wait())};
          support::Place& own = support::place();
          const Lanes lanes = streams == Streams::one   ? Lanes{own, own}
                              : streams == Streams::two ? Lanes{own, *others[0]}
                                                        : Lanes{*others[0], *others[1]};
          Captured graph(communicator, steps, depth, halves, lanes, findings);
          // To make a graph may wait for kernels of ranks that share the GPU, which wait for this one.
          const Status all = world.barrier();
          support::expect_true(findings, kRefusal, all.to_string(), all.ok());
          for (std::size_t replay = 0; replay < kReplays; ++replay) {
            std::vector<const Step*> of_graph;
            for (std::size_t i = 0; i < depth; ++i) {
              of_graph.push_back(&steps[(replay + 1) * depth + i]);
            }
            graph.replay(of_graph, steps[replay], replay % 2 == 0 ? 1 : 2);
            if (replay % 3 == 1) run_step(communicator, steps.back(), findings);
          }
        }));
  }

  /// Tokens of each rank are as many in all steps, and rows lie in tensors of the caller.
  static StepSpec fixed() {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    spec.rows_from = RowsFrom::caller;
    spec.caller_handle = true;
    return spec;
  }
};

TEST_P(Graphs, WholeCalls) {
  expect_replays(small(), fixed(), 1, false);
}

TEST_P(Graphs, ManyTokens) {
  Scenario scenario = small();
  scenario.shape.max_tokens = 80;
  expect_replays(scenario, fixed(), 1, false);
}

TEST_P(Graphs, RowsOfTheLibrary) {
  StepSpec spec = fixed();
  spec.tokens = support::TokensKind::some_zero;
  spec.rows_from = RowsFrom::library;
  spec.weights_at_combine = true;
  expect_replays(small(), spec, 2, false);
}

TEST_P(Graphs, HalvesInFlight) {
  StepSpec spec = fixed();
  spec.zero_padding = true;
  spec.row_counts = true;
  spec.shared_results = 1;
  expect_replays(small(), spec, 2, true);
}

// As with streams that are not captured, calls follow one another in the order in which they are made.
TEST_P(Graphs, TwoStreams) {
  expect_replays(small(), fixed(), 3, false, Streams::two);
  expect_replays(small(), fixed(), 2, true, Streams::two);
  if (!kAlone) expect_replays(small(), fixed(), 3, false, Streams::apart);
}

TEST_P(Graphs, RegisteredTensors) {
  Scenario scenario = small();
  scenario.options.y_memory = YMemory::registered;
  StepSpec spec = fixed();
  spec.registered_x = true;
  spec.registered_y = true;
  scenario.options.registered_bytes = 6 * registered_bytes(scenario);
  expect_replays(scenario, spec, 2, true);
  expect_replays(scenario, spec, 1, false);
}

INSTANTIATE_TEST_SUITE_P(Captured, Graphs, all_layouts(), Graphs::name);

/// Many pairs of one communicator, queued on a stream of its own without waiting for any.
class Queue {
 public:
  Queue(Communicator& communicator, const std::vector<Step>& steps, void* stream,
        support::Findings& findings)
      : stream_(stream) {
    for (const Step& step : steps) {
      const DispatchCall& d = dispatches_.emplace_back(communicator, step, 0, findings);
      const TensorView& rows = d.outputs().rows;
      combines_.emplace_back(
          communicator, step, 0, d.outputs().handle,
          std::vector<std::int64_t>(rows.shape.begin(), rows.shape.begin() + rows.dims), findings);
    }
  }
  void put() {
    for (std::size_t i = 0; i < dispatches_.size(); ++i) {
      received_.push_back(dispatches_[i].queue(stream_));
      results_.push_back(combines_[i].queue(stream_));
    }
  }
  /// Once all of it is over.
  void check() {
    for (std::size_t i = 0; i < dispatches_.size(); ++i) {
      dispatches_[i].take(std::move(received_[i]));
      dispatches_[i].check();
      combines_[i].take(std::move(results_[i]));
      combines_[i].check();
    }
  }

 private:
  void* stream_;
  std::deque<DispatchCall> dispatches_;
  std::deque<CombineCall> combines_;
  std::vector<Received> received_;
  std::vector<CombineResult> results_;
};

class Queued : public LayoutTest {};

// Ranks need not agree on the order in which they queue the calls of two communicators: each has its stream, and multiprocessors
// enough for both.
TEST_P(Queued, InOppositeOrders) {
  constexpr int kPairs = 12;
  Scenario first = small();
  first.options.block_limit = 8;
  Scenario second = first;
  second.seed = 9;
  second.shape = Shape{5, 2, 128, 6};
  StepSpec spec;
  spec.rows_from = RowsFrom::caller;
  std::vector<Step> first_steps;
  std::vector<Step> second_steps;
  for (int i = 0; i < kPairs; ++i) {
    first_steps.push_back(prepare_step(first, spec, i));
    second_steps.push_back(prepare_step(second, spec, i));
  }
  expect_clean(
      run_body(first, [&](World& world, Communicator& communicator, support::Findings& findings) {
        std::optional<Communicator> other = make_communicator(world, second, findings);
        if (!other.has_value()) return;
        const std::unique_ptr<support::Place> apart =
            support::gpu_place(world.rank(), support::longest_wait());
        support::Place& place = support::place();
        Queue one(communicator, first_steps, place.stream(), findings);
        Queue two(*other, second_steps, apart->stream(), findings);
        const Status met = world.barrier();
        support::expect_true(findings, kRefusal, met.to_string(), met.ok());
        if (world.rank() % 2 == 0) {
          one.put();
          two.put();
        } else {
          two.put();
          one.put();
        }
        place.finish();
        apart->finish();
        one.check();
        two.check();
      }));
}

INSTANTIATE_TEST_SUITE_P(Streams, Queued, all_layouts(), Queued::name);

}  // namespace
}  // namespace sluice::conformance
