// SPDX-License-Identifier: MIT
// Ranks that use other handles, layouts or routings than their peers: it is said, nobody waits in
// vain, what does not fit is dropped, and the next operation is as good as any.
#include <fmt/core.h>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {
namespace {

using reference::at;
using support::expect_equal;
using support::expect_true;

constexpr int kOdd = 1;  // The rank that does otherwise.

class Mismatch : public LayoutTest {
 protected:
  StepSpec full() const {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    return spec;
  }
};

// Rows of the odd rank are zeroed, those of the others are what they should be.
void expect_lost_source(const DispatchCall& call, const Step& step, int rank,
                        support::Findings& findings) {
  const reference::Dispatched& expected = step.dispatched[1];
  const auto hidden = at(step.dispatches[1].hidden);
  const std::vector<std::byte> zeros(hidden * 2, std::byte{0});
  for (const reference::Row& row : expected.ranks[at(rank)].rows) {
    const std::byte* seen = support::row_of(call.received().rows, row.number);
    const std::byte* wanted =
        row.source == kOdd ? zeros.data() : expected.payload(row).elements.data();
    if (!support::expect_row(findings, kLoss,
                             fmt::format("row {} of source rank {}", row.number, row.source),
                             DType::bf16, wanted, seen, hidden)) {
      return;
    }
  }
}

// The odd rank and the others name each other, and nobody else.
void expect_odd_one(const Report& report, const World& world, support::Findings& findings) {
  for (int peer = 0; peer < world.size(); ++peer) {
    expect_equal(findings, kReport, fmt::format("report.mismatched names rank {}", peer).c_str(),
                 (peer == kOdd) != (world.rank() == kOdd) ? 1 : 0,
                 report.mismatched.contains(peer) ? 1 : 0);
  }
}

TEST_P(Mismatch, AForeignHandle) {
  const Scenario from = small();
  Scenario other = from;
  other.shape.max_tokens += 3;
  StepSpec spec = full();
  spec.cached = 1;
  spec.rows_from = RowsFrom::caller;  // Poisoned: what is not zeroed shows.
  const Step step = prepare_step(from, spec, 0);
  const Step other_step = prepare_step(other, spec, 1);
  expect_clean(
      run_body(from, [&](World& world, Communicator& communicator, support::Findings& findings) {
        std::optional<Communicator> foreign = make_communicator(world, other, findings);
        if (!foreign.has_value()) return;
        DispatchCall theirs(*foreign, other_step, 0, findings);
        theirs.whole();
        DispatchCall first(communicator, step, 0, findings);
        first.whole();
        DispatchCall cached(communicator, step, 1, findings);
        const bool odd = world.rank() == kOdd;
        cached.whole(odd ? theirs.handle() : first.handle());
        const Received& received = cached.received();
        findings.set_context("a cached dispatch along a foreign handle: ");
        // A GPU sees it, and not the host.
        const bool on_host = support::place().device() == Device::cpu;
        if (odd && on_host) {
          expect_true(findings, kRefusal, "it was not refused",
                      received.status.code() == StatusCode::invalid_argument);
          expect_true(findings, kRefusal, "its handle is not a refused one",
                      received.handle.valid() && received.handle.refused());
        } else if (!odd) {
          expect_true(findings, kRefusal, "status: " + received.status.to_string(),
                      received.status.ok());
          expect_true(findings, kRefusal, "report.refused does not name rank 1",
                      received.report.refused.contains(kOdd));
          if (received.rows.given()) expect_lost_source(cached, step, world.rank(), findings);
        }
        run_step(communicator, step, findings);
      }));
}

TEST_P(Mismatch, OfLayouts) {
  const Scenario from = small();
  const Step step = prepare_step(from, full(), 0);
  expect_clean(run_body(from, [&](World& world, Communicator& communicator,
                                  support::Findings& findings) {
    DispatchCall call(communicator, step, 0, findings);
    DispatchOptions options = call.options();
    const bool odd = world.rank() == kOdd;
    if (odd) {
      options.layout = layout() == Layout::expert_slab ? Layout::expert_major : Layout::expert_slab;
    }
    call.take(communicator.dispatch(call.x(), call.ids(), call.weights(), options, call.outputs()));
    findings.set_context("one rank calls with another layout: ");
    for (int peer = 0; peer < world.size(); ++peer) {
      expect_equal(findings, kReport, "report.mismatched names a rank",
                   (peer == kOdd) != odd ? 1 : 0,
                   call.received().report.mismatched.contains(peer) ? 1 : 0);
    }
    run_step(communicator, step, findings);
  }));
}

// A rank sends along the handle of another dispatch, and combines with it: it is said, also where the
// numbers of records are the same, and what does not fit is dropped.
TEST_P(Mismatch, OfHandles) {
  Scenario from = small();
  if (layout() != Layout::expert_slab) {  // In one layout results are not read in place.
    from.options.y_memory = YMemory::registered;
    from.options.registered_bytes = registered_bytes(from);
  }
  StepSpec spec = full();
  spec.cached = 1;
  const Step usual = prepare_step(from, spec, 0);
  spec.routing = support::RoutingKind::only_hot;
  const Step unusual = prepare_step(from, spec, 1);
  expect_clean(
      run_body(from, [&](World& world, Communicator& communicator, support::Findings& findings) {
        const int rank = world.rank();
        DispatchCall a(communicator, usual, 0, findings);
        a.whole();
        DispatchCall b(communicator, unusual, 0, findings);
        b.whole();
        const Step& mine = rank == kOdd ? unusual : usual;
        DispatchCall cached(communicator, mine, 1, findings);
        cached.whole(rank == kOdd ? b.handle() : a.handle());
        findings.set_context("one rank sends along another dispatch's handle: ");
        expect_odd_one(cached.received().report, world, findings);
        DispatchCall& own = rank == kOdd ? b : a;
        CombineCall combine(communicator, mine, 0, own.handle(), own.rows_shape(), findings);
        support::Tensor out(DType::bf16,
                            {communicator.shape().max_tokens, communicator.shape().hidden});
        findings.set_context("one rank combines with another dispatch's handle: ");
        combine.take(communicator.combine(combine.y(), own.handle(), out.view(), combine.options(),
                                          combine.outputs()));
        const CombineResult& combined = combine.result();
        expect_odd_one(combined.report, world, findings);
        expect_true(
            findings, kReport, "status: " + combined.status.to_string(),
            combined.status.code() ==
                (support::place().device() == Device::cpu ? StatusCode::mismatch : StatusCode::ok));
        run_step(communicator, usual, findings);
      }));
}

// The same with weights given to combine: ranks wait for weights of routes that the other handle does not have.
TEST_P(Mismatch, OfHandlesWithWeights) {
  const Scenario from = small();
  StepSpec spec = full();
  spec.weights_at_combine = true;
  const Step usual = prepare_step(from, spec, 0);
  spec.routing = support::RoutingKind::sparse;
  const Step unusual = prepare_step(from, spec, 1);
  expect_clean(
      run_body(from, [&](World& world, Communicator& communicator, support::Findings& findings) {
        DispatchCall a(communicator, usual, 0, findings);
        a.whole();
        DispatchCall b(communicator, unusual, 0, findings);
        b.whole();
        const bool odd = world.rank() == kOdd;
        DispatchCall& own = odd ? b : a;
        CombineCall combine(communicator, odd ? unusual : usual, 0, own.handle(), own.rows_shape(),
                            findings);
        support::Tensor out(DType::bf16,
                            {communicator.shape().max_tokens, communicator.shape().hidden});
        findings.set_context("one rank combines with another dispatch's handle, and weights: ");
        combine.take(communicator.combine(combine.y(), own.handle(), out.view(), combine.options(),
                                          combine.outputs()));
        expect_odd_one(combine.result().report, world, findings);
        run_step(communicator, usual, findings);
      }));
}

INSTANTIATE_TEST_SUITE_P(Errors, Mismatch, all_layouts(), Mismatch::name);

}  // namespace
}  // namespace sluice::conformance
