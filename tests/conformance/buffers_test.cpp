// SPDX-License-Identifier: MIT
// Where inputs and outputs lie: strides, given rows and scales, allocators, registered memory.
#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "conformance/calls.hpp"
#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"
#include "support/place.hpp"

namespace sluice::conformance {
namespace {

class Buffers : public LayoutTest {};

TEST_P(Buffers, StridedInputsAndOutputs) {
  Scenario scenario = small();
  for (const int gap : {1, 8, 35}) {
    StepSpec spec;
    spec.input_gap = gap;
    spec.output_gap = gap + 1;
    spec.rows_from = RowsFrom::caller;
    spec.weights_at_combine = layout() != Layout::rank_major;
    spec.row_weights = layout() == Layout::rank_major;
    spec.shared_results = 2;
    spec.biases = 1;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

TEST_P(Buffers, ScalesOfAnyStride) {
  Scenario scenario = small();
  scenario.shape.hidden = 272;
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0}) {
    for (const bool token_contiguous : {false, true}) {
      StepSpec spec;
      spec.codec = Codec{CodecKind::fp8, form, 32};
      spec.rows_from = RowsFrom::caller;
      spec.token_contiguous_scales = token_contiguous;
      spec.output_gap = token_contiguous ? 0 : 5;
      scenario.steps.push_back(spec);
      spec.output_gap = 3;
      spec.spare_rows = 4;
      spec.expert_alignment = 8;
      scenario.steps.push_back(spec);
    }
  }
  expect_clean(run(scenario));
}

TEST_P(Buffers, AllocatorAndHandleMemory) {
  Scenario scenario = small();
  for (const Codec codec : {Codec{CodecKind::bf16}, Codec{CodecKind::fp8, ScaleForm::f32, 32}}) {
    StepSpec spec;
    spec.codec = codec;
    spec.rows_from = RowsFrom::allocator;
    spec.caller_handle = true;
    spec.cached = 1;
    scenario.steps.push_back(spec);
    spec.capacity = 9;
    scenario.steps.push_back(spec);
    spec.tokens = support::TokensKind::all_zero;
    scenario.steps.push_back(spec);
  }
  expect_clean(run(scenario));
}

TEST_P(Buffers, RegisteredInputs) {
  Scenario scenario = small();
  scenario.options.registered_bytes = registered_bytes(scenario);
  for (const YMemory y_memory : {YMemory::ordinary, YMemory::registered}) {
    scenario.options.y_memory = y_memory;
    scenario.steps.clear();
    for (int i = 0; i < 4; ++i) {
      StepSpec spec;
      spec.registered_x = i % 2 == 0;
      spec.registered_y = i >= 2;
      spec.input_gap = i == 3 ? 7 : 0;
      spec.combines = 2;
      spec.delays = i >= 2;
      scenario.steps.push_back(spec);
    }
    expect_clean(run(scenario), fmt::format("y_memory {}", static_cast<int>(y_memory)));
  }
}

namespace {

Scenario encoded_rows(Scenario scenario, int hidden) {
  scenario.shape.hidden = hidden;
  scenario.options.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 32};
  scenario.options.registered_bytes = registered_bytes(scenario);
  int i = 0;
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::ue8m0}) {
    for (const int group : {32, 64, 128, 256}) {
      for (const EncodedX encoded : {EncodedX::apart, EncodedX::one_record}) {
        StepSpec spec;
        spec.codec = Codec{CodecKind::fp8, form, group};
        spec.encoded_x = encoded;
        spec.registered_x = i % 3 != 0;
        spec.input_gap = std::array{0, 4, 16, 7}[static_cast<std::size_t>(i / 2) % 4];
        spec.token_contiguous_scales = i % 4 == 1;
        if (form == ScaleForm::f32 && i % 4 != 0) spec.data = support::DataKind::not_finite;
        spec.cached = i % 2;
        spec.flow = i % 5 == 0 ? Flow::halves : Flow::whole;
        ++i;
        scenario.steps.push_back(spec);
      }
    }
  }
  return scenario;
}

}  // namespace

TEST_P(Buffers, EncodedRows) {
  // Three units, the last one short, and so is its last group.
  expect_clean(run(encoded_rows(small(), 1168)), "hidden 1168");
  expect_clean(run(encoded_rows(small(), 1024)), "hidden 1024");
}

// What was not dispatched did not come, whatever the handle says that was to be used.
TEST_P(Buffers, RowCountsOfRefusedCalls) {
  Scenario scenario = small();
  scenario.options.registered_bytes = registered_bytes(scenario);
  StepSpec spec;
  spec.tokens = support::TokensKind::full;
  spec.row_counts = true;
  const Step step = prepare_step(scenario, spec, 0);
  expect_clean(run_body(scenario, [&](World&, Communicator& communicator,
                                      support::Findings& findings) {
    const bool on_gpu = support::place().device() == Device::cuda;
    DispatchCall dispatch(communicator, step, 0, findings);
    dispatch.whole();
    dispatch.check();
    ConstTensorView x = dispatch.x();
    x.shape[0] -= 1;
    DispatchOptions options = dispatch.options();
    if (on_gpu) options.layout = step.layout();
    DispatchOutputs outputs;
    outputs.row_counts = dispatch.outputs().row_counts;
    outputs.stream = dispatch.outputs().stream;
    const Received received = communicator.dispatch(x, dispatch.handle(), options, outputs);
    // Only a host that sees the handle can say so at once.
    support::expect_true(findings, kRefusal, "the call was not refused",
                         on_gpu || !received.status.ok());
    const Status come =
        await_row_counts(outputs.row_counts, received.epoch, std::chrono::seconds(60));
    support::expect_true(findings, kCounts, come.to_string(), come.ok());
    support::place().finish();
    const auto* const words = static_cast<const std::int64_t*>(outputs.row_counts.data);
    for (std::int64_t i = 1; i < outputs.row_counts.shape[0]; ++i) {
      support::expect_equal(findings, kCounts, "rows of a refused call", std::int64_t{0}, words[i]);
    }
    if (!on_gpu) return;
    // The host cannot read GPU memory.
    const Result<void*> memory = communicator.allocate(1024);
    if (!memory.ok()) return findings.add(memory.status().to_string());
    outputs.row_counts.data = *memory;
    const Received dropped =
        communicator.dispatch(dispatch.x(), dispatch.handle(), options, outputs);
    support::expect_true(findings, kMemory, dropped.status.to_string(),
                         dropped.status.code() == StatusCode::invalid_argument &&
                             dropped.status.message().find("row_counts") != std::string::npos);
    support::place().finish();
  }));
}

// Registered memory is each rank's own affair.
TEST_P(Buffers, RegisteredMemoryOfAnySize) {
  const Scenario scenario = small();
  const Step step = prepare_step(scenario, StepSpec(), 0);
  expect_clean(run_body(scenario, [&](World& world, Communicator&, support::Findings& findings) {
    Scenario own = scenario;
    own.options.registered_bytes = static_cast<std::size_t>(world.rank()) << 22U;
    std::optional<Communicator> communicator = make_communicator(world, own, findings);
    if (communicator.has_value()) run_step(*communicator, step, findings);
  }));
}

// Homes read y where it lies, as far as they can use it as it is, and form the sums themselves.
TEST_P(Buffers, ResultsReadInPlace) {
  Scenario scenario = small();
  scenario.options.y_memory = YMemory::registered;
  scenario.options.registered_bytes = registered_bytes(scenario);
  scenario.options.permit_single = true;
  const bool expert_layout = layout() != Layout::rank_major;
  support::Random random = support::Random::of(scenario.seed, 77);
  for (const DType y_dtype : {DType::bf16, DType::f32}) {
    for (const CodecKind codec : {CodecKind::bf16, CodecKind::f16}) {
      for (int form = 0; form < 7; ++form) {
        StepSpec spec;
        spec.y_dtype = y_dtype;
        spec.combine_codec = codec;
        spec.ordinary_y = form == 1;
        spec.plain_sum = expert_layout && form == 2;
        spec.weights_at_combine = expert_layout && form == 3;
        spec.row_weights = !expert_layout && form == 3;
        spec.reduce = expert_layout && form >= 4 && form < 6 ? Reduce::single : Reduce::rank;
        spec.capacity = form >= 5 ? 3 : 0;
        spec.shared_results = form == 6 ? 1 : 0;
        spec.combines = 2;
        spec.delays = random.chance(20);
        scenario.steps.push_back(spec);
      }
    }
  }
  expect_clean(run(scenario));
}

class Overwrites : public ::testing::TestWithParam<std::tuple<Mode, Layout, YMemory>> {};

// x and y may be overwritten as soon as the whole calls return, whatever peers still do.
TEST_P(Overwrites, InputsAfterTheCall) {
  Scenario scenario;
  scenario.ranks = 4;
  scenario.shape = Shape{8, 3, 48, 8};
  scenario.options.mode = std::get<0>(GetParam());
  scenario.options.layout = std::get<1>(GetParam());
  scenario.options.y_memory = std::get<2>(GetParam());
  scenario.options.registered_bytes = registered_bytes(scenario);
  std::vector<Step> steps;
  for (int i = 0; i < 6; ++i) {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    spec.registered_x = i % 2 == 1;
    spec.registered_y = i % 2 == 1;
    steps.push_back(prepare_step(scenario, spec, i));
  }
  const auto scribble = [](const ConstTensorView& view, std::size_t bytes) {
    support::place().fill(const_cast<void*>(view.data), 0x3C, bytes);
    // Before somebody else gets that memory.
    support::place().finish();
  };
  expect_clean(run_body(scenario,
                        [&](World& world, Communicator& communicator, support::Findings& findings) {
                          for (const Step& step : steps) {
                            if (world.rank() == 1) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(3));
                            }
                            DispatchCall dispatch(communicator, step, 0, findings);
                            dispatch.whole();
                            const ConstTensorView x = dispatch.x();
                            if (x.shape[0] > 0) {
                              scribble(x, static_cast<std::size_t>(x.shape[0] * x.shape[1]) * 2);
                            }
                            dispatch.check();
                            CombineCall combine(communicator, step, 0, dispatch.handle(),
                                                dispatch.rows_shape(), findings);
                            combine.whole();
                            const ConstTensorView y = combine.y();
                            std::int64_t elements = 1;
                            for (int d = 0; d < y.dims; ++d) {
                              elements *= y.shape[static_cast<std::size_t>(d)];
                            }
                            if (elements > 0 && y.data != nullptr) {
                              scribble(y, static_cast<std::size_t>(elements) * 2);
                            }
                            combine.check();
                          }
                        }));
}

// Views that the library owns are valid until released, also while later dispatches run.
TEST_P(Buffers, RowsLiveUntilReleased) {
  Scenario scenario = small();
  std::vector<Step> steps;
  for (int i = 0; i < 8; ++i) {
    StepSpec spec;
    spec.tokens = support::TokensKind::full;
    steps.push_back(prepare_step(scenario, spec, i));
  }
  expect_clean(
      run_body(scenario, [&](World&, Communicator& communicator, support::Findings& findings) {
        std::deque<DispatchCall> calls;
        for (const Step& step : steps) {
          calls.emplace_back(communicator, step, 0, findings);
          calls.back().whole();
          if (calls.size() == 4) calls[1].received().release();
        }
        for (std::size_t i = 0; i < calls.size(); ++i) {
          if (i != 1) calls[i].check();
        }
      }));
}

INSTANTIATE_TEST_SUITE_P(Memory, Buffers, all_layouts(), Buffers::name);
INSTANTIATE_TEST_SUITE_P(
    Memory, Overwrites,
    ::testing::Combine(both_modes(),
                       ::testing::Values(Layout::rank_major, Layout::expert_major,
                                         Layout::expert_slab),
                       ::testing::Values(YMemory::ordinary, YMemory::registered)),
    [](const auto& point) {
      return std::string(to_string(std::get<0>(point.param))) + "_" +
             std::string(to_string(std::get<1>(point.param))) +
             (std::get<2>(point.param) == YMemory::registered ? "_registered" : "_ordinary");
    });

}  // namespace
}  // namespace sluice::conformance
