// SPDX-License-Identifier: MIT
//
// A rank on a GPU falls silent while another one has more patience than the rest: that one waits on, alive, and who
// waits for it must not give it up with the silent one (docs/protocol.md, "One silent rank").
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>

#include "faults/late.hpp"
#include "sluice/communicator.hpp"
#include "support/gpu_main.hpp"
#include "support/tensor.hpp"

namespace sluice::faults {
namespace {

constexpr int kPatient = 1;
constexpr int kSilent = 3;
constexpr int kTokens = 4;
constexpr int kHidden = 256;
/// The patient rank gives the silent one up when the others have waited for longer than this for the patient one, and not
/// yet kRanks times as long.
constexpr milliseconds kShort = std::max(kDeadline, milliseconds(200));
constexpr milliseconds kLong = 3 * kShort;
static_assert(kRanks > 3);

class Caller {
 public:
  explicit Caller(Communicator& communicator)
      : communicator_(communicator),
        x_(DType::bf16, {kTokens, kHidden}),
        ids_(DType::i32, {kTokens, kTopk}),
        weights_(DType::f32, {kTokens, kTopk}),
        slab_(DType::bf16, {kExperts / kRanks, kRanks * kTokens, kHidden}),
        out_(DType::bf16, {kTokens, kHidden}),
        memory_(DType::u8, {static_cast<std::int64_t>(communicator.handle_bytes())}),
        report_(support::place().allocate(sizeof(Report))) {
    std::memset(x_.view().data, 0, x_.bytes());
    std::memset(slab_.view().data, 0, slab_.bytes());
    route_everywhere(kTokens, static_cast<std::int32_t*>(ids_.view().data),
                     static_cast<float*>(weights_.view().data));
  }

  /// The ranks that are missing, as bits; or below zero if the call failed.
  int dispatch(milliseconds deadline) {
    DispatchOptions options;
    options.stream = support::place().stream();
    options.deadline = deadline;
    DispatchOutputs outputs;
    outputs.rows = slab_.view();
    outputs.handle = Handle(memory_.view().data, memory_.bytes(), Device::cuda);
    outputs.report = new (report_.get()) Report();
    const Received received =
        communicator_.dispatch(x_.view(), ids_.view(), weights_.view(), options, outputs);
    handle_ = received.handle;
    return missing(received.status);
  }
  int combine(milliseconds deadline) {
    CombineOptions options;
    options.stream = support::place().stream();
    options.deadline = deadline;
    CombineOutputs outputs;
    outputs.report = new (report_.get()) Report();
    return missing(
        communicator_.combine(slab_.view(), handle_, out_.view(), options, outputs).status);
  }

 private:
  int missing(const Status& status) const {
    support::place().finish();
    if (!status.ok()) return -1;
    return static_cast<int>(static_cast<const Report*>(report_.get())->missing.words[0]);
  }

  Communicator& communicator_;
  support::Tensor x_, ids_, weights_, slab_, out_, memory_;
  std::shared_ptr<void> report_;
  Handle handle_;
};

/// patience: of the patient rank; none if it waits for ever, until the silent one does come after all.
/// `second`: what the others do after they have given the silent one up in a dispatch; then they miss `missing`.
void expect_one_silent(milliseconds patience, int (Caller::*second)(milliseconds), int missing) {
  const bool for_ever = patience < milliseconds(0);
  std::barrier<> all(kRanks);
  std::barrier<> others(kRanks - 1);
  const auto call = [&](World& world, support::Findings& failures) {
    CommunicatorOptions options;
    options.layout = Layout::expert_slab;
    support::place().adapt(options);
    Result<Communicator> communicator =
        Communicator::create(world, {kExperts, kTopk, kHidden, kTokens}, options);
    if (!communicator) {
      failures.add(communicator.status().to_string());
      all.arrive_and_drop();
      if (world.rank() != kPatient) others.arrive_and_drop();
      return;
    }
    Caller caller(*communicator);
    const auto expect = [&](const char* what, int seen, int expected) {
      if (seen == expected) return;
      failures.add(std::string(what) + ": missing are " + std::to_string(seen) + ", expected " +
                   std::to_string(expected));
    };
    expect("dispatch of all", caller.dispatch(20 * kShort), 0);
    all.arrive_and_wait();
    if (world.rank() == kPatient) {
      expect("the patient rank's call", caller.dispatch(patience), for_ever ? 0 : 1 << kSilent);
      if (!for_ever) expect("its second call", (caller.*second)(kShort), missing);
    } else if (world.rank() == kSilent) {
      others.arrive_and_wait();
      if (for_ever) (void)caller.dispatch(kShort);
    } else {
      expect("first call without it", caller.dispatch(kShort), 1 << kSilent);
      expect("second call without it", (caller.*second)(kShort), missing);
      others.arrive_and_wait();
    }
    all.arrive_and_wait();
  };
  support::RunOptions options;
  options.watchdog = 20 * kShort + std::chrono::seconds(10);
  EXPECT_EQ(findings_of_trials(1, call, options), "");
}

TEST(CudaSilent, WhoWaitsForItIsNotGivenUpInDispatch) {
  expect_one_silent(kLong, &Caller::dispatch, 1 << kSilent);
}
TEST(CudaSilent, WhoWaitsForItIsNotGivenUpInCombine) {
  expect_one_silent(kLong, &Caller::combine, 1 << kSilent);
}
TEST(CudaSilent, NobodyIsWaitedForLongerThanAsManyDeadlinesAsThereAreRanks) {
  expect_one_silent(milliseconds(-1), &Caller::dispatch, 1 << kSilent | 1 << kPatient);
}

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
