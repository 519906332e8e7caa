// SPDX-License-Identifier: MIT
//
// A rank on a GPU that comes to dispatch at its peers' deadline: of what it sends, some arrives before it is given
// up and some does not. All its records are there, or none, and then the handle and the report say so; what living ranks
// sent is whole, and its rows are where the handle says.
#include <gtest/gtest.h>

#include <algorithm>
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

constexpr int kLate = 1;  // Rows of higher ranks come after its own.
/// What rank 0's rows say: more than the number of any token.
constexpr int kFirst = 100;
/// The weights of the rank that is late.
constexpr float kLateWeight = 2.0F;

struct Shape {
  Layout layout;
  int tokens;
  int late_tokens;  // of the rank that is late
  int hidden;
  Mode mode = Mode::latency;

  int tokens_of(int rank) const { return rank == kLate ? late_tokens : tokens; }
};

/// One dispatch by one rank, and what it received. A row says who sent it, and which token it is: its first half one, its
/// second half the other.
class Trial {
 public:
  Trial(Communicator& communicator, int rank, const Shape& shape)
      : communicator_(communicator),
        shape_(shape),
        tokens_(shape.tokens_of(rank)),
        most_(std::max(shape.tokens, shape.late_tokens)),
        x_(DType::bf16, {tokens_, shape.hidden}),
        ids_(DType::i32, {tokens_, kTopk}),
        weights_(DType::f32, {tokens_, kTopk}),
        rows_(DType::bf16, rows_shape()),
        memory_(DType::u8, {static_cast<std::int64_t>(communicator.handle_bytes())}),
        report_(support::place().allocate(sizeof(Report))) {
    for (int token = 0; token < tokens_; ++token) {
      auto* const row = reinterpret_cast<std::uint16_t*>(x_.row(token));
      std::fill_n(row, shape.hidden / 2, half_of(kFirst + rank));
      std::fill_n(row + shape.hidden / 2, shape.hidden / 2, half_of(1 + token));
    }
    route_everywhere(tokens_, static_cast<std::int32_t*>(ids_.view().data),
                     static_cast<float*>(weights_.view().data));
    auto* const weights = static_cast<float*>(weights_.view().data);
    if (rank == kLate) std::fill_n(weights, tokens_ * kTopk, kLateWeight);
    new (report_.get()) Report();
  }

  bool dispatch(milliseconds deadline) {
    DispatchOptions options;
    options.stream = support::place().stream();
    options.deadline = deadline;
    DispatchOutputs outputs;
    outputs.rows = rows_.view();
    outputs.handle = Handle(memory_.view().data, memory_.bytes(), Device::cuda);
    outputs.report = static_cast<Report*>(report_.get());
    const Received received =
        communicator_.dispatch(x_.view(), ids_.view(), weights_.view(), options, outputs);
    handle_ = received.handle;
    support::place().finish();
    return received.status.ok();
  }

  void check(Timing& timing, support::Findings& findings) {
    const Report report = *static_cast<const Report*>(report_.get());
    const auto missing = static_cast<int>(report.missing.words[0]);
    if (handle_.report().missing != report.missing) findings.add("two reports differ");
    if ((missing & ~(1 << kLate)) != 0) findings.add("living ranks are missing");
    const bool lost = missing != 0;
    std::vector<std::int32_t> sources(static_cast<std::size_t>(handle_.rows()) * 3);
    const TensorView view(sources.data(), DType::i32, handle_.rows(), 3);
    if (const Status status = handle_.row_sources(view); !status.ok()) {
      return findings.add(status.to_string());
    }
    std::vector<int> seen(static_cast<std::size_t>(kRanks * most_));
    int nobodys = 0;
    for_each_row([&](std::int64_t row) {
      const std::int32_t* const from = &sources[static_cast<std::size_t>(row) * 3];
      if (from[0] < 0) {
        ++nobodys;
        if (!is_filled(row, 0, 0)) {
          findings.add("row " + std::to_string(row) + " of nobody is not zero");
        }
        return;
      }
      ++seen[static_cast<std::size_t>(from[0] * most_ + from[1])];
      if (!is_filled(row, half_of(kFirst + from[0]), half_of(1 + from[1]))) {
        findings.add("row " + std::to_string(row) + " is not token " + std::to_string(from[1]) +
                     " of rank " + std::to_string(from[0]));
      }
    });
    for (int source = 0; source < kRanks; ++source) {
      for (int token = 0; token < shape_.tokens_of(source); ++token) {
        const int expected = source == kLate && lost ? 0 : 1;
        const int found = seen[static_cast<std::size_t>(source * most_ + token)];
        if (found == expected) continue;
        findings.add("token " + std::to_string(token) + " of rank " + std::to_string(source) +
                     " has " + std::to_string(found) + " rows; missing are " +
                     std::to_string(missing));
      }
    }
    if (!lost && nobodys != 0) findings.add("rows of nobody, but nobody is missing");
    ++(lost ? timing.without : timing.with);
    if (nobodys != 0) ++timing.with_both;
    timing.answered += nobodys;
  }

 private:
  static constexpr int kLocal = kExperts / kRanks;

  std::vector<std::int64_t> rows_shape() const {
    const std::int64_t all = kRanks * most_;
    if (shape_.layout == Layout::expert_slab) return {kLocal, all, shape_.hidden};
    // A token may have several experts of a rank.
    return {shape_.layout == Layout::expert_major ? all * kLocal : all, shape_.hidden};
  }

  template <typename Work>
  void for_each_row(Work work) const {
    if (shape_.layout == Layout::rank_major) {
      for (std::int64_t row = 0; row < handle_.rows(); ++row) work(row);
      return;
    }
    const auto* const counts = static_cast<const std::int32_t*>(handle_.counts().data);
    const auto* const offsets = static_cast<const std::int64_t*>(handle_.offsets().data);
    for (int expert = 0; expert < kLocal; ++expert) {
      for (int at = 0; at < counts[expert]; ++at) work(offsets[expert] + at);
    }
  }
  bool is_filled(std::int64_t row, std::uint16_t first, std::uint16_t second) const {
    return says(rows_.row(row), shape_.hidden, first, second);
  }

  Communicator& communicator_;
  Shape shape_;
  int tokens_;
  int most_;
  support::Tensor x_, ids_, weights_, rows_, memory_;
  std::shared_ptr<void> report_;
  Handle handle_;
};

void run_trial(World& world, const Shape& shape, Timing& timing, support::Findings& findings) {
  const int rank = world.rank();
  CommunicatorOptions options;
  options.layout = shape.layout;
  options.mode = shape.mode;
  // Slowly, so that the deadline is more often in the middle.
  if (rank == kLate) options.block_limit = 1;
  support::place().adapt(options);
  const int most = std::max(shape.tokens, shape.late_tokens);
  Result<Communicator> communicator =
      Communicator::create(world, {kExperts, kTopk, shape.hidden, most}, options);
  if (!communicator) return findings.add(communicator.status().to_string());
  Trial trial(*communicator, rank, shape);
  Trial next(*communicator, rank, shape);
  timing.all.arrive_and_wait();
  const bool late = rank == kLate && timing.wait.count() > 0;
  if (late) std::this_thread::sleep_for(timing.wait);
  if (!trial.dispatch(late ? kDeadline * 20 : kDeadline)) findings.add("dispatch failed");
  if (rank != kLate) trial.check(timing, findings);
  timing.all.arrive_and_wait();
  // Who has given it up does without it.
  Timing ignored;
  if (!next.dispatch(kDeadline)) findings.add("the next dispatch failed");
  if (rank != kLate) next.check(ignored, findings);
  timing.all.arrive_and_wait();
  if (rank == 0) timing.adapt();
  timing.all.arrive_and_wait();
}

std::string run_trials(int trials, const Shape& shape, Timing& timing) {
  return findings_of_trials(trials, [&](World& world, support::Findings& findings) {
    run_trial(world, shape, timing, findings);
  });
}

class CudaLateDispatch : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(, CudaLateDispatch,
                         ::testing::Values(Layout::expert_slab, Layout::expert_major,
                                           Layout::rank_major),
                         [](const ::testing::TestParamInfo<Layout>& parameter) {
                           return std::string(to_string(parameter.param));
                         });

void expect_all_or_nothing(const Shape& shape) {
  Timing timing;
  EXPECT_EQ(run_trials(kTrials, shape, timing), "");
  std::printf(
      "in %d trials, %d times a rank had counted rows of the late one that it lost; "
      "it came %.3f ms late\n",
      kTrials, timing.with_both.load(), static_cast<double>(timing.wait.count()) / 1e3);
}
TEST_P(CudaLateDispatch, FewTokens) {
  expect_all_or_nothing({GetParam(), 8, 8, 4096});
}
TEST_P(CudaLateDispatch, ManyTokens) {
  expect_all_or_nothing({GetParam(), 80, 80, 2048});
}

/// Kernels for few tokens, by ranks that have slots for many.
TEST_P(CudaLateDispatch, ManyTokensToFew) {
  expect_all_or_nothing({GetParam(), 8, 80, 2048});
}

/// Whole calls in one kernel: the deadline may fall between its cell and its rows.
TEST_P(CudaLateDispatch, ThroughputMode) {
#if SLUICE_CUDA_SIMULATED
  expect_all_or_nothing({GetParam(), 80, 80, 512, Mode::throughput});
#else
  expect_all_or_nothing({GetParam(), 96, 96, 7168, Mode::throughput});
#endif
}

#if SLUICE_CUDA_SIMULATED
/// Ranks that wait for the late one, times the trials.
constexpr int kWaiting = kRanks - 1;

/// A rank that dies, or is frozen, while it sends: of every record some pieces come.
void expect_lost_rows(const Shape& shape) {
  Timing timing;
  timing.wait = {};
  const auto word = std::bit_cast<std::uint32_t>(static_cast<float>(kFirst + kLate));
  gpu_simulator::lost_word = word >> 16 | (word & 0xFFFF0000U);
  EXPECT_EQ(run_trials(1, shape, timing), "");
  gpu_simulator::lost_word = 0;
  EXPECT_EQ(timing.answered, kWaiting * shape.late_tokens);
}
TEST_P(CudaLateDispatch, PartsOfFewTokens) {
  expect_lost_rows({GetParam(), 8, 8, 4096});
}
TEST_P(CudaLateDispatch, PartsOfManyTokens) {
  expect_lost_rows({GetParam(), 80, 80, 2048});
}

/// In throughput mode all of its counts come, and half of its headers.
TEST_P(CudaLateDispatch, HeadersInThroughputMode) {
  const Shape shape{GetParam(), 80, 80, 512, Mode::throughput};
  Timing timing;
  timing.wait = {};
  gpu_simulator::lost_second_word = std::bit_cast<std::uint32_t>(kLateWeight);
  EXPECT_EQ(run_trials(1, shape, timing), "");
  gpu_simulator::lost_second_word = 0;
  EXPECT_EQ(timing.answered, kWaiting * shape.late_tokens);
}

/// Of the late rank's counts half come, of which all make the same.
void expect_lost_counts(const Shape& shape) {
  Timing timing;
  timing.wait = {};
  gpu_simulator::lost_count = static_cast<std::uint32_t>(shape.late_tokens * kRanks / kExperts);
  EXPECT_EQ(run_trials(1, shape, timing), "");
  gpu_simulator::lost_count = 0;
  const bool by_expert = shape.layout != Layout::rank_major;
  EXPECT_EQ(timing.answered, kWaiting * shape.late_tokens / (by_expert ? 2 : 1));
}
TEST_P(CudaLateDispatch, CountsOfFewTokens) {
  expect_lost_counts({GetParam(), 8, 12, 4096});
}
TEST_P(CudaLateDispatch, CountsOfManyTokens) {
  expect_lost_counts({GetParam(), 80, 96, 1024});
}
#endif

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
