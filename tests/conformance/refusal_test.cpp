// SPDX-License-Identifier: MIT
// Refused calls: the caller gets its Status and a handle marked refused, peers complete and are
// told who refused, the routes there are lost, and the next operation is as good as any.
#include <functional>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {
namespace {

using support::expect_equal;
using support::expect_true;

constexpr int kRefuser = 1;

/// Arguments of a dispatch, to be spoiled.
struct DispatchArguments {
  ConstTensorView x, ids, weights;
  DispatchOptions options;
  DispatchOutputs outputs;
};
struct BadDispatch {
  std::string name;
  std::function<void(DispatchArguments&)> spoil;
};

std::vector<BadDispatch> bad_dispatches(const Shape& shape) {
  return {
      {"x of dtype i32", [](auto& a) { a.x.dtype = DType::i32; }},
      {"x not given", [](auto& a) { a.x = {}; }},
      {"x with one dimension", [](auto& a) { a.x.dims = 1; }},
      {"x with 3 dimensions",
       [](auto& a) {
         a.x.dims = 3;
         a.x.shape[2] = 1;
       }},
      {"x with too few columns", [](auto& a) { a.x.shape[1] -= 16; }},
      {"x with an innermost stride of 2", [](auto& a) { a.x.strides[1] = 2; }},
      {"x with a negative number of rows",
       [](auto& a) {
         a.x.shape[0] = -1;
         a.ids.shape[0] = -1;
       }},
      {"x without memory", [](auto& a) { a.x.data = nullptr; }},
      {"x in another device's memory",
       [](auto& a) { a.x.device = a.x.device == Device::cpu ? Device::cuda : Device::cpu; }},
      {"ids not given", [](auto& a) { a.ids = {}; }},
      {"ids of dtype f32", [](auto& a) { a.ids.dtype = DType::f32; }},
      {"ids with another K", [](auto& a) { a.ids.shape[1] -= 1; }},
      {"ids with another T", [](auto& a) { a.ids.shape[0] -= 1; }},
      {"ids without memory", [](auto& a) { a.ids.data = nullptr; }},
      {"weights of dtype bf16", [](auto& a) { a.weights.dtype = DType::bf16; }},
      {"weights with another T", [](auto& a) { a.weights.shape[0] -= 1; }},
      {"T above M",
       [shape](auto& a) {
         // Strides of 0: more rows without more memory.
         for (ConstTensorView* view : {&a.x, &a.ids, &a.weights}) {
           view->shape[0] = shape.max_tokens + 1;
           view->strides[0] = 0;
         }
       }},
      {"a mask of dtype f32",
       [](auto& a) { a.options.mask = ConstTensorView(a.x.data, DType::f32, a.x.shape[0]); }},
      {"a mask with another T",
       [](auto& a) { a.options.mask = ConstTensorView(a.x.data, DType::u8, a.x.shape[0] + 1); }},
  };
}

class Refusal : public LayoutTest {
 protected:
  Scenario scenario() const {
    Scenario made = small();
    made.options.permit_single = layout() != Layout::rank_major;
    // In one layout results are read in place.
    if (layout() == Layout::expert_major) {
      made.options.y_memory = YMemory::registered;
      made.options.registered_bytes = registered_bytes(made);
    }
    return made;
  }
  /// Steps in which rank 1 refuses: its dispatch (no tokens of its own) or only its combine.
  std::vector<Step> refused_steps(const Scenario& from, std::size_t count, bool at_dispatch) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < count; ++i) {
      StepSpec spec;
      spec.tokens = support::TokensKind::full;
      spec.lost_ranks = {false, true, false, false};
      steps.push_back(prepare_step(from, spec, static_cast<int>(i)));
      if (at_dispatch) drop_inputs(steps.back(), {kRefuser});
    }
    return steps;
  }
};

void expect_refused(const Received& received, const std::string& name,
                    support::Findings& findings) {
  support::place().finish();
  findings.set_context(name + ": ");
  expect_true(findings, kRefusal, "the refused call returned ok", !received.status.ok());
  expect_true(findings, kRefusal, "the refusal says nothing", !received.status.message().empty());
  expect_true(findings, kRefusal, "the refused handle is not valid", received.handle.valid());
  expect_true(findings, kRefusal, "the refused handle is not marked",
              received.handle.valid() && received.handle.refused());
}

// The combine that goes with a refused dispatch: whatever is given as y is not looked at.
void combine_refused(Communicator& communicator, const Handle& handle) {
  support::Tensor out(DType::bf16, {0, communicator.shape().hidden});
  CombineOptions options;
  options.stream = support::place().stream();
  (void)communicator.combine({}, handle, out.view(), options);
}

TEST_P(Refusal, OfDispatchArguments) {
  const Scenario from = scenario();
  const std::vector<BadDispatch> bad = bad_dispatches(from.shape);
  const std::vector<Step> refused = refused_steps(from, bad.size(), true);
  StepSpec good_spec;
  good_spec.tokens = support::TokensKind::full;
  const Step good = prepare_step(from, good_spec, 1000);
  expect_clean(run_body(from, [&](World& world, Communicator& communicator,
                                  support::Findings& findings) {
    for (std::size_t i = 0; i < bad.size(); ++i) {
      if (world.rank() == kRefuser) {
        // The good step's arguments, spoiled.
        DispatchCall call(communicator, good, 0, findings);
        DispatchArguments a{call.x(), call.ids(), call.weights(), call.options(), call.outputs()};
        bad[i].spoil(a);
        Received received = communicator.dispatch(a.x, a.ids, a.weights, a.options, a.outputs);
        expect_refused(received, bad[i].name, findings);
        expect_true(findings, kRefusal, "expected invalid_argument: " + received.status.to_string(),
                    received.status.code() == StatusCode::invalid_argument);
        combine_refused(communicator, received.handle);
      } else {
        DispatchCall call(communicator, refused[i], 0, findings);
        call.whole();
        call.check();
        CombineCall combine(communicator, refused[i], 0, call.handle(), call.rows_shape(),
                            findings);
        combine.whole();
        combine.check();
      }
      run_step(communicator, good, findings);
    }
  }));
}

struct BadOutputs {
  std::string name;
  std::function<void(DispatchOutputs&)> spoil;
};

TEST_P(Refusal, OfDispatchOutputs) {
  const Scenario from = scenario();
  const std::int64_t hidden = from.shape.hidden;
  const bool slab = layout() == Layout::expert_slab;
  // Room for one row: too little for any rank, since every token has K routes.
  std::vector<std::byte> memory(static_cast<std::size_t>(hidden) * 4 + 64);
  const auto small_rows = [&](DType dtype, std::int64_t columns) {
    return slab ? TensorView(memory.data(), dtype, 2, 1, columns)
                : TensorView(memory.data(), dtype, 1, columns);
  };
  const std::vector<BadOutputs> bad = {
      {"rows too few", [&](DispatchOutputs& o) { o.rows = small_rows(DType::bf16, hidden); }},
      {"rows of another dtype",
       [&](DispatchOutputs& o) { o.rows = small_rows(DType::f32, hidden); }},
      {"rows with other columns",
       [&](DispatchOutputs& o) { o.rows = small_rows(DType::bf16, hidden - 16); }},
      {"an allocator without memory",
       [&](DispatchOutputs& o) {
         o.allocator = [](BufferKind, std::size_t) -> void* { return nullptr; };
       }},
      {"a handle's memory too small",
       [&](DispatchOutputs& o) { o.handle = Handle(memory.data(), 64); }},
  };
  // Their tokens were sent before the receive half failed; what they receive is dropped.
  const std::vector<Step> refused = refused_steps(from, bad.size(), false);
  const Step good = prepare_step(from, StepSpec{}, 1000);
  expect_clean(
      run_body(from, [&](World& world, Communicator& communicator, support::Findings& findings) {
        for (std::size_t i = 0; i < bad.size(); ++i) {
          DispatchCall call(communicator, refused[i], 0, findings);
          if (world.rank() == kRefuser) {
            DispatchOutputs outputs = call.outputs();
            bad[i].spoil(outputs);
            const DispatchTicket ticket =
                communicator.send_dispatch(call.x(), call.ids(), call.weights(), call.options());
            Received received = communicator.receive_dispatch(ticket, outputs);
            expect_refused(received, bad[i].name, findings);
            combine_refused(communicator, received.handle);
          } else {
            call.whole();
            call.check();
            CombineCall combine(communicator, refused[i], 0, call.handle(), call.rows_shape(),
                                findings);
            combine.whole();
            combine.check();
          }
          run_step(communicator, good, findings);
        }
      }));
}

struct CombineArguments {
  ConstTensorView y;
  Handle handle;
  CombineOptions options;
};
struct BadCombine {
  std::string name;
  std::function<void(CombineArguments&)> spoil;
  bool seen_by_device = false;  // On a GPU: there, and not by the host.
};

TEST_P(Refusal, OfCombineArguments) {
  const Scenario from = scenario();
  alignas(64) static std::byte garbage[256] = {std::byte{1}, std::byte{2}};
  const std::vector<BadCombine> bad = {
      {"y not given", [](auto& a) { a.y = {}; }},
      {"y of dtype e4m3", [](auto& a) { a.y.dtype = DType::e4m3; }},
      {"y with one dimension", [](auto& a) { a.y.dims = 1; }},
      {"y with too few columns", [](auto& a) { a.y.shape[std::size_t(a.y.dims - 1)] -= 16; }},
      {"y with too few rows",
       [](auto& a) {
         a.y.shape[0] = support::place().device() == Device::cpu ? a.y.shape[0] - 1 : 0;
       },
       true},
      {"y with one row", [](auto& a) { a.y.shape[std::size_t(a.y.dims == 3 ? 1 : 0)] = 1; }, true},
      {"y with an innermost stride of 2",
       [](auto& a) { a.y.strides[std::size_t(a.y.dims - 1)] = 2; }},
      {"y without memory", [](auto& a) { a.y.data = nullptr; }},
      {"a handle of no memory", [](auto& a) { a.handle = Handle(); }},
      {"a handle of garbage", [](auto& a) { a.handle = Handle(garbage, sizeof garbage); }},
      {"weights with another T",
       [](auto& a) { a.options.weights = ConstTensorView(a.y.data, DType::f32, 1, 3); }, true},
      {"weights of dtype bf16",
       [](auto& a) { a.options.weights = ConstTensorView(a.y.data, DType::bf16, 8, 3); }},
      {"row weights with other rows",
       [](auto& a) { a.options.row_weights = ConstTensorView(a.y.data, DType::f32, 1, 7); }},
  };
  const std::vector<Step> refused = refused_steps(from, bad.size(), false);
  const Step good = prepare_step(from, StepSpec{}, 1000);
  expect_clean(run_body(from, [&](World& world, Communicator& communicator,
                                  support::Findings& findings) {
    for (std::size_t i = 0; i < bad.size(); ++i) {
      DispatchCall call(communicator, refused[i], 0, findings);
      call.whole();
      call.check();
      CombineCall combine(communicator, refused[i], 0, call.handle(), call.rows_shape(), findings);
      if (world.rank() == kRefuser) {
        CombineArguments a{combine.y(), call.handle(), combine.options()};
        bad[i].spoil(a);
        const CombineResult result = communicator.combine(a.y, a.handle, combine.out(), a.options);
        findings.set_context(bad[i].name + ": ");
        if (support::place().device() == Device::cpu || !bad[i].seen_by_device) {
          expect_true(findings, kRefusal, "the refused combine returned ok", !result.status.ok());
        }
      } else {
        combine.whole();
        combine.check();
      }
      run_step(communicator, good, findings);
    }
  }));
}

struct BadHome {
  std::string name;
  std::function<void(CombineOutputs&)> spoil;
};

// What a home gives wrong concerns nobody else.
TEST_P(Refusal, OfCombineOutputs) {
  const Scenario from = scenario();
  const std::vector<BadHome> bad = {
      {"out not given", [](auto& o) { o.out = {}; }},
      {"out of dtype i32", [](auto& o) { o.out.dtype = DType::i32; }},
      {"out with too few rows", [](auto& o) { o.out.shape[0] -= 1; }},
      {"out with too few columns", [](auto& o) { o.out.shape[1] -= 16; }},
      {"out without memory", [](auto& o) { o.out.data = nullptr; }},
      {"three biases", [](auto& o) { o.biases.assign(3, ConstTensorView(o.out)); }},
      {"a bias with other columns",
       [](auto& o) {
         o.biases.assign(1, ConstTensorView(o.out));
         o.biases[0].shape[1] -= 16;
       }},
      {"a shared result of dtype i64",
       [](auto& o) {
         o.shared_results.assign(1, ConstTensorView(o.out));
         o.shared_results[0].dtype = DType::i64;
       }},
      {"surviving_weight with another T", [](auto& o) { o.surviving_weight.shape[0] -= 1; }},
  };
  StepSpec spec;
  spec.tokens = support::TokensKind::full;
  const Step step = prepare_step(from, spec, 0);
  expect_clean(
      run_body(from, [&](World& world, Communicator& communicator, support::Findings& findings) {
        for (const BadHome& home : bad) {
          DispatchCall call(communicator, step, 0, findings);
          call.whole();
          call.check();
          CombineCall combine(communicator, step, 0, call.handle(), call.rows_shape(), findings);
          if (world.rank() == kRefuser) {
            CombineOutputs outputs = combine.outputs();
            home.spoil(outputs);
            const CombineTicket ticket =
                communicator.send_combine(combine.y(), call.handle(), combine.options());
            const CombineResult result = communicator.receive_combine(ticket, outputs);
            findings.set_context(home.name + ": ");
            expect_true(findings, kRefusal, "send_combine refused", ticket.status.ok());
            expect_true(findings, kRefusal, "the refused receive half returned ok",
                        !result.status.ok());
          } else {
            combine.whole();
            combine.check();
          }
          run_step(communicator, step, findings);
        }
      }));
}

// All ranks refuse alike, and go on.
TEST_P(Refusal, OfWhatAllAskFor) {
  const Scenario from = scenario();
  const Step good = prepare_step(from, StepSpec{}, 0);
  std::vector<std::pair<std::string, std::function<void(DispatchOptions&)>>> bad = {
      {"an alignment of 0", [](auto& o) { o.expert_alignment = 0; }},
      {"a negative capacity", [](auto& o) { o.capacity = -1; }},
      {"a codec of a larger record", [](auto& o) { o.codec = Codec{CodecKind::f32}; }},
      {"an illegal group",
       [](auto& o) {
         o.codec = Codec{CodecKind::fp8, ScaleForm::f32, 48};
       }},
  };
  expect_clean(run_body(from, [&](World&, Communicator& communicator, support::Findings& findings) {
    for (const auto& [name, spoil] : bad) {
      DispatchCall call(communicator, good, 0, findings);
      DispatchOptions options = call.options();
      spoil(options);
      Received received = communicator.dispatch(call.x(), call.ids(), call.weights(), options);
      expect_refused(received, name, findings);
      combine_refused(communicator, received.handle);
      run_step(communicator, good, findings);
    }
  }));
}

TEST_P(Refusal, OfSingle) {
  Scenario from = small();
  from.options.permit_single = false;
  const Step good = prepare_step(from, StepSpec{}, 0);
  expect_clean(run_body(from, [&](World&, Communicator& communicator, support::Findings& findings) {
    DispatchCall call(communicator, good, 0, findings);
    call.whole();
    CombineCall combine(communicator, good, 0, call.handle(), call.rows_shape(), findings);
    CombineOptions options = combine.options();
    options.reduce = Reduce::single;
    const CombineResult result =
        communicator.combine(combine.y(), call.handle(), combine.out(), options);
    expect_true(findings, kRefusal, "reduce = single was not refused", !result.status.ok());
    combine.whole();
    combine.check();
    run_step(communicator, good, findings);
  }));
}

TEST_P(Refusal, OfHalvesWithoutTheirSend) {
  const Scenario from = scenario();
  const Step good = prepare_step(from, StepSpec{}, 0);
  expect_clean(run_body(from, [&](World&, Communicator& communicator, support::Findings& findings) {
    const Received received = communicator.receive_dispatch(DispatchTicket{}, {});
    expect_true(findings, kRefusal, "receive_dispatch without a send: ok",
                received.status.code() == StatusCode::failed_precondition);
    const CombineResult result = communicator.receive_combine(CombineTicket{}, {});
    expect_true(findings, kRefusal, "receive_combine without a send: ok",
                result.status.code() == StatusCode::failed_precondition);
    run_step(communicator, good, findings);
  }));
}

INSTANTIATE_TEST_SUITE_P(Errors, Refusal, all_layouts(), Refusal::name);

}  // namespace
}  // namespace sluice::conformance
