// SPDX-License-Identifier: MIT
//
// A rank on a GPU that comes to combine at its peers' deadline: of what it sends, some arrives before it is given
// up and some does not. A token's row is whole with it, or whole without it, or of no answer at all; reports and
// surviving weights say the same.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <thread>

#include "faults/late.hpp"
#include "sluice/communicator.hpp"
#include "support/gpu_main.hpp"
#include "support/tensor.hpp"
#if SLUICE_CUDA_SIMULATED
#include "gpu_simulator/losses.hpp"
#endif

namespace sluice::faults {
namespace {

constexpr int kLate = 3;
constexpr int kAll = (1 << kRanks) - 1;

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Circumstances {
  int tokens;
  int hidden;
  bool surviving = false;  // Surviving weights are asked for.
  Mode mode = Mode::latency;
  bool weights =
      false;  // Given to combine: a rank that is late with its sums is late with these, too.
};

/// One trial's calls by one rank. What a rank's experts answer is one bit, so a sum says whose answers are in it.
class Trial {
 public:
  Trial(Communicator& communicator, int rank, const Circumstances& circumstances)
      : communicator_(communicator),
        rank_(rank),
        circumstances_(circumstances),
        tokens_(circumstances.tokens),
        hidden_(circumstances.hidden),
        x_(DType::bf16, {tokens_, hidden_}),
        ids_(DType::i32, {tokens_, kTopk}),
        weights_(DType::f32, {tokens_, kTopk}),
        slab_(DType::bf16, {kExperts / kRanks, kRanks * tokens_, hidden_}),
        out_(DType::bf16, {tokens_, hidden_}),
        surviving_(DType::f32, {tokens_}),
        report_(support::place().allocate(sizeof(Report))),
        memory_(DType::u8, {static_cast<std::int64_t>(communicator.handle_bytes())}) {
    std::memset(x_.view().data, 0, x_.bytes());
    route_everywhere(tokens_, static_cast<std::int32_t*>(ids_.view().data),
                     static_cast<float*>(weights_.view().data));
    new (report_.get()) Report();
  }

  bool dispatch() {
    DispatchOptions options;
    options.stream = support::place().stream();
    options.deadline = kDeadline * 20;
    DispatchOutputs outputs;
    outputs.rows = slab_.view();
    outputs.handle = Handle(memory_.view().data, memory_.bytes(), Device::cuda);
    const Received received = communicator_.dispatch(
        x_.view(), ids_.view(),
        circumstances_.weights ? ConstTensorView() : ConstTensorView(weights_.view()), options,
        outputs);
    handle_ = received.handle;
    support::place().finish();
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(1 << rank_));
    std::fill_n(static_cast<std::uint16_t*>(slab_.view().data), slab_.bytes() / 2,
                static_cast<std::uint16_t>(bits >> 16));
    return received.status.ok();
  }

  bool combine(milliseconds deadline) {
    CombineOptions options;
    options.stream = support::place().stream();
    options.deadline = deadline;
    if (circumstances_.weights) options.weights = weights_.view();
    CombineOutputs outputs;
    outputs.out = out_.view();
    outputs.renormalize = false;
    outputs.report = static_cast<Report*>(report_.get());
    if (circumstances_.surviving) outputs.surviving_weight = surviving_.view();
    const CombineTicket ticket = communicator_.send_combine(slab_.view(), handle_, options);
    outputs.stream = options.stream;
    const CombineResult result = communicator_.receive_combine(ticket, outputs);
    support::place().finish();
    return result.status.ok();
  }

  void check(Timing& timing, support::Findings& findings) const {
    const Report& report = *static_cast<const Report*>(report_.get());
    std::int64_t lost = 0;
    int with = 0;
    for (int token = 0; token < tokens_; ++token) {
      const std::byte* const row = out_.row(token);
      const int answered = element(row, 0);
      for (int i = 1; i < hidden_; ++i) {
        if (element(row, i) == answered) continue;
        findings.add("token " + std::to_string(token) + " is the sum of ranks " +
                     std::to_string(answered) + " at first, and of " +
                     std::to_string(element(row, i)) + " at element " + std::to_string(i));
        break;
      }
      const bool named =
          answered >= 0 && (answered | static_cast<int>(report.missing.words[0])) == kAll;
      if (answered != 0 && !named) {
        findings.add("token " + std::to_string(token) + " is the sum of ranks " +
                     std::to_string(answered) + ", but missing are " +
                     std::to_string(report.missing.words[0]));
      }
      const int routes = std::popcount(static_cast<unsigned>(answered));
      lost += kTopk - routes;
      if (circumstances_.surviving) {
        const float surviving = static_cast<const float*>(surviving_.view().data)[token];
        if (surviving != static_cast<float>(routes)) {
          findings.add("token " + std::to_string(token) + " of " + std::to_string(routes) +
                       " answers has a surviving weight of " + std::to_string(surviving));
        }
      }
      if (answered == kAll) ++with;
      if (answered != 0) ++timing.answered;
    }
    timing.with += with;
    timing.without += tokens_ - with;
    if (with > 0 && with < tokens_) ++timing.with_both;
    if (report.lost_routes != lost) {
      findings.add("reported are " + std::to_string(report.lost_routes) + " lost routes, not " +
                   std::to_string(lost));
    }
  }

 private:
  /// -1 if it is not a sum of answers.
  static int element(const std::byte* row, int index) {
    std::uint16_t half = 0;
    std::memcpy(&half, row + index * 2, sizeof half);
    const float value = std::bit_cast<float>(std::uint32_t{half} << 16);
    return value >= 0.0F && value <= static_cast<float>(kAll) ? static_cast<int>(value) : -1;
  }

  Communicator& communicator_;
  int rank_;
  Circumstances circumstances_;
  int tokens_;
  int hidden_;
  support::Tensor x_, ids_, weights_, slab_, out_, surviving_;
  std::shared_ptr<void> report_;
  support::Tensor memory_;
  Handle handle_;
};

void run_trial(World& world, const Circumstances& circumstances, Timing& timing,
               support::Findings& findings) {
  const int rank = world.rank();
  CommunicatorOptions options;
  options.layout = Layout::expert_slab;
  options.mode = circumstances.mode;
  // Slowly, so that the deadline is more often in the middle.
  if (rank == kLate) options.block_limit = 1;
  support::place().adapt(options);
  Result<Communicator> communicator = Communicator::create(
      world, {kExperts, kTopk, circumstances.hidden, circumstances.tokens}, options);
  if (!communicator) return findings.add(communicator.status().to_string());
  Trial trial(*communicator, rank, circumstances);
  if (!trial.dispatch()) findings.add("dispatch failed");
  timing.all.arrive_and_wait();
  const bool late = rank == kLate && timing.wait.count() > 0;
  if (late) std::this_thread::sleep_for(timing.wait);
  // Without its weights nobody answers it: it waits until its own deadline.
  const milliseconds longer = kDeadline * (circumstances.weights ? 3 : 20);
  if (!trial.combine(late ? longer : kDeadline)) findings.add("combine failed");
  // Who has given the late one up may have had no weights of it: then it gets no sums of theirs, rather than wrong ones.
  if (rank != kLate || circumstances.weights) trial.check(timing, findings);
  timing.all.arrive_and_wait();
  if (rank == 0) timing.adapt();
  timing.all.arrive_and_wait();
}

void run_trials(int trials, const Circumstances& circumstances, Timing& timing) {
  EXPECT_EQ(findings_of_trials(trials,
                               [&](World& world, support::Findings& findings) {
                                 run_trial(world, circumstances, timing, findings);
                               }),
            "");
}

void expect_whole_tokens(const Circumstances& circumstances) {
  Timing timing;
  run_trials(kTrials, circumstances, timing);
  std::printf(
      "in %d trials, %d times a rank had tokens with the late one and others without; "
      "it came %.3f ms late\n",
      kTrials, timing.with_both.load(), static_cast<double>(timing.wait.count()) / 1e3);
}

#if SLUICE_CUDA_SIMULATED
/// A rank that dies, or is frozen, while it sends: of every record some pieces come.
void expect_lost_tokens(const Circumstances& circumstances) {
  Timing timing;
  timing.wait = {};
  const auto answer = std::bit_cast<std::uint32_t>(static_cast<float>(1 << kLate));
  gpu_simulator::lost_word = answer >> 16 | (answer & 0xFFFF0000U);
  run_trials(1, circumstances, timing);
  gpu_simulator::lost_word = 0;
  // Not all: where a record was not looked at in time, nothing of it was taken, and the other answers stay.
  EXPECT_LT(timing.answered, (kRanks - 1) * circumstances.tokens);
}

TEST(CudaLate, PartsOfFewTokens) {
  expect_lost_tokens({8, 2048});
}
TEST(CudaLate, PartsOfFewTokensWithSurvivingWeights) {
  expect_lost_tokens({8, 2048, true});
}
TEST(CudaLate, PartsOfManyTokens) {
  expect_lost_tokens({80, 1024});
}
#endif

TEST(CudaLate, FewTokens) {
  expect_whole_tokens({8, 8192});
}
TEST(CudaLate, FewTokensWithSurvivingWeights) {
  expect_whole_tokens({8, 8192, true});
}
TEST(CudaLate, ManyTokens) {
  expect_whole_tokens({80, 2048});
}
TEST(CudaLate, ThroughputMode) {
  expect_whole_tokens({80, 2048, true, Mode::throughput});
}
TEST(CudaLate, WithWeights) {
  expect_whole_tokens({8, 2048, false, Mode::latency, true});
}
TEST(CudaLate, ThroughputModeWithWeights) {
  expect_whole_tokens({80, 2048, false, Mode::throughput, true});
}

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
