// SPDX-License-Identifier: MIT
//
// One of three ranks makes a bad call: its peers complete, know who it was, and the next round is
// right for all.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <thread>
#include <vector>

#include "calls.hpp"

namespace sluice::arguments {
namespace {

constexpr int kRanks = 3;
constexpr int kRefuser = 1;
constexpr std::int64_t kTokens = 3;
constexpr int kHidden = 16;

float f32_of(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

/// One rank with an expert of its own; token t goes to experts t and t + 1, mod 3, with 1/2 each.
struct Rank {
  std::vector<std::uint16_t> x, out;
  std::vector<std::int32_t> ids;
  std::vector<float> weights, surviving;
  std::vector<std::string> wrong;

  explicit Rank(int rank) : out(kTokens * kHidden), surviving(kTokens) {
    for (int i = 0; i < kTokens * kHidden; ++i) {
      const auto value = static_cast<float>(rank * 64 + i);
      x.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    }
    for (int token = 0; token < kTokens; ++token) {
      ids.insert(ids.end(), {token % 3, (token + 1) % 3});
      weights.insert(weights.end(), {0.5F, 0.5F});
    }
  }

  void expect(bool good, const std::string& what) {
    if (!good) wrong.push_back(what);
  }

  /// Experts return their input: home gets x, also where one half is lost and made good.
  void round(Communicator& communicator, bool refuse_dispatch, bool refuse_combine) {
    const bool me = communicator.rank() == kRefuser;
    const bool anybody = refuse_dispatch || refuse_combine;
    ConstTensorView rows(x.data(), me && refuse_dispatch ? DType::i32 : DType::bf16, kTokens,
                         kHidden);
    Received received = communicator.dispatch(rows, {ids.data(), DType::i32, kTokens, 2},
                                              {weights.data(), DType::f32, kTokens, 2});
    ConstTensorView y = received.rows;
    if (me && refuse_combine) y.shape[1] = 1;
    TensorView home(out.data(), DType::bf16, me && refuse_dispatch ? 0 : kTokens, kHidden);
    CombineOutputs outputs;
    outputs.surviving_weight = TensorView(surviving.data(), DType::f32, home.shape[0]);
    const CombineResult result = communicator.combine(y, received.handle, home, {}, outputs);
    if (me && anybody) {
      expect(!received.status.ok() == refuse_dispatch, received.status.to_string());
      expect(!result.status.ok(), "the bad call of combine returned ok");
      return;
    }
    expect(received.status.ok(), received.status.to_string());
    expect(result.status.ok(), result.status.to_string());
    expect(received.report.refused.contains(kRefuser) == refuse_dispatch, "dispatch: refused");
    expect(result.report.refused.contains(kRefuser) == anybody, "combine: refused");
    expect(received.report.missing.empty() && result.report.missing.empty(), "missing");
    // Tokens 0 and 1 have one route to expert 1, which is the refuser's.
    expect(result.report.lost_routes == (anybody ? 2 : 0), "lost_routes");
    for (std::size_t token = 0; token < kTokens; ++token) {
      const float expected = anybody && token < 2 ? 0.5F : 1.0F;
      expect(surviving[token] == expected, "surviving_weight");
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (f32_of(out[i]) != f32_of(x[i])) {
        expect(false, "out[" + std::to_string(i) + "] = " + std::to_string(f32_of(out[i])) +
                          ", expected " + std::to_string(f32_of(x[i])));
        return;
      }
    }
  }
};

class Peers : public ::testing::TestWithParam<Mode> {};

TEST_P(Peers, CompleteAndGoOn) {
  auto worlds = World::threads(kRanks);
  ASSERT_TRUE(worlds.ok());
  std::vector<Rank> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(rank);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      CommunicatorOptions options;
      options.mode = GetParam();
      options.deadline = options.first_deadline = std::chrono::seconds(30);
      Result<Communicator> made =
          Communicator::create((*worlds)[at], Shape{3, 2, kHidden, 4}, options);
      if (!made.ok()) {
        ranks[at].wrong.push_back(made.status().to_string());
        return;
      }
      for (int i = 0; i < 4; ++i) {
        ranks[at].round(*made, false, false);
        ranks[at].round(*made, true, false);
        ranks[at].round(*made, false, false);
        ranks[at].round(*made, false, true);
      }
      (void)(*worlds)[at].barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const std::string& wrong : ranks[static_cast<std::size_t>(rank)].wrong) {
      ADD_FAILURE() << "rank " << rank << ": " << wrong;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Arguments, Peers, ::testing::Values(Mode::latency, Mode::throughput),
                         [](const auto& one) { return std::string(to_string(one.param)); });

}  // namespace
}  // namespace sluice::arguments
