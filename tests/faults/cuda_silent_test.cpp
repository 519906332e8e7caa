// SPDX-License-Identifier: MIT
//
// A rank on a GPU falls silent while another one has more patience than the rest: that one waits on, alive, and who
// waits for it must not give it up with the silent one (docs/protocol.md, "One silent rank").
//
// The silent one comes after all, which ends the patient one's wait: at a time after the others began to wait for the patient
// one, however long that took. A patience that ended by the clock alone would on a busy machine be over before.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <string>
#include <thread>

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
/// All ranks' but the patient one's, which has no deadline in its first call.
constexpr milliseconds kShort = std::max(kDeadline, milliseconds(200));
constexpr milliseconds kForEver(-1);
/// How long the others wait for the patient one, if the silent one comes meanwhile: longer than they would for one that gives
/// no sign of life, and not yet as long as for one that does (kRanks deadlines).
constexpr milliseconds kLong = 5 * kShort / 2;
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

enum class Comes { while_they_wait, when_they_have_given_up };

/// `second`: what the others do after they have given the silent rank up in a dispatch; then they miss `missing`.
/// comes: when the silent rank does come.
void expect_one_silent(Comes comes, int (Caller::*second)(milliseconds), int missing) {
  const bool in_time = comes == Comes::while_they_wait;
  std::barrier<> all(kRanks);
  std::barrier<> all_but_patient(kRanks - 1);
  const auto call = [&](World& world, support::Findings& failures) {
    CommunicatorOptions options;
    options.layout = Layout::expert_slab;
    support::place().adapt(options);
    Result<Communicator> communicator =
        Communicator::create(world, {kExperts, kTopk, kHidden, kTokens}, options);
    if (!communicator) {
      failures.add(communicator.status().to_string());
      all.arrive_and_drop();
      if (world.rank() != kPatient) all_but_patient.arrive_and_drop();
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
      expect("the patient rank's call", caller.dispatch(kForEver), 0);
      if (in_time) expect("its second call", (caller.*second)(kShort), missing);
    } else if (world.rank() == kSilent) {
      all_but_patient.arrive_and_wait();
      if (in_time) std::this_thread::sleep_for(kLong);
      (void)caller.dispatch(kShort);
    } else {
      expect("first call without it", caller.dispatch(kShort), 1 << kSilent);
      if (in_time) all_but_patient.arrive_and_wait();
      expect("second call without it", (caller.*second)(kShort), missing);
      if (!in_time) all_but_patient.arrive_and_wait();
    }
    all.arrive_and_wait();
  };
  support::RunOptions options;
  options.watchdog = 20 * kShort + std::chrono::seconds(10);
  EXPECT_EQ(findings_of_trials(1, call, options), "");
}

TEST(CudaSilent, WhoWaitsForItIsNotGivenUpInDispatch) {
  expect_one_silent(Comes::while_they_wait, &Caller::dispatch, 1 << kSilent);
}
TEST(CudaSilent, WhoWaitsForItIsNotGivenUpInCombine) {
  expect_one_silent(Comes::while_they_wait, &Caller::combine, 1 << kSilent);
}
TEST(CudaSilent, NobodyIsWaitedForLongerThanAsManyDeadlinesAsThereAreRanks) {
  expect_one_silent(Comes::when_they_have_given_up, &Caller::dispatch,
                    1 << kSilent | 1 << kPatient);
}

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
