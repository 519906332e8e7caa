// SPDX-License-Identifier: MIT
//
// Nothing throws across the public API.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/test_point.hpp"
#include "sluice/communicator.hpp"
#include "support/run_ranks.hpp"

namespace sluice {
namespace {

using support::Findings;

constexpr int kRanks = 2;
constexpr int kTokens = 4;
constexpr Shape kShape{.experts = 4, .top_k = 1, .hidden = 32, .max_tokens = kTokens};
constexpr int kVictim = 1;
constexpr base::TestPoint kNever = base::TestPoint::before_progress;

std::atomic<base::TestPoint> fails_at{kNever};

void run_out_of_memory(base::TestPoint point, int rank, int /*peer*/) {
  if (rank == kVictim && point == fails_at.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

/// Whether it tells that there is no memory for the call, and that there will be no others.
bool says_so(const Status& status) {
  return status.code() == StatusCode::out_of_memory &&
         status.message().find("can make no more calls") != std::string::npos;
}

class NoMemory : public ::testing::TestWithParam<base::TestPoint> {
 protected:
  void SetUp() override { base::test_point_hook = &run_out_of_memory; }
  void TearDown() override {
    base::test_point_hook = nullptr;
    fails_at = kNever;
  }
};

// The rank's calls end with a Status, from then on all of them; its peer's end at their deadlines, and name it.
TEST_P(NoMemory, InACall) {
  const auto body = [](World& world, Findings& findings) {
    auto made = Communicator::create(world, kShape);
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    const std::vector<float> x(static_cast<std::size_t>(kTokens * kShape.hidden), 1.0F);
    const std::vector<std::int32_t> ids{0, 1, 2, 3};
    std::vector<float> out(x.size());
    DispatchOptions dispatch_options;
    CombineOptions combine_options;
    const auto round = [&](Status& dispatched, Status& combined, RankSet& missing) {
      const Received received =
          made->dispatch({x.data(), DType::f32, kTokens, kShape.hidden},
                         {ids.data(), DType::i32, kTokens, kShape.top_k}, {}, dispatch_options);
      dispatched = received.status;
      const CombineResult result =
          made->combine(received.rows, received.handle,
                        {out.data(), DType::f32, kTokens, kShape.hidden}, combine_options);
      combined = result.status;
      missing = received.report.missing;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (result.report.missing.contains(peer)) missing.insert(peer);
      }
    };
    Status dispatched;
    Status combined;
    RankSet missing;
    round(dispatched, combined, missing);
    if (!dispatched.ok() || !combined.ok()) {
      return findings.add("first: " + dispatched.to_string() + ", " + combined.to_string());
    }
    if (const Status met = world.barrier(); !met.ok()) findings.add(met.to_string());
    if (world.rank() == kVictim) fails_at = GetParam();
    dispatch_options.deadline = combine_options.deadline = std::chrono::seconds(1);
    round(dispatched, combined, missing);
    if (world.rank() == kVictim) {
      if (!says_so(combined)) findings.add("combine: " + combined.to_string());
      round(dispatched, combined, missing);
      if (!says_so(dispatched)) findings.add("dispatch: " + dispatched.to_string());
      if (!says_so(combined)) findings.add("combine again: " + combined.to_string());
      const CombineTicket ticket = made->send_combine({}, {});
      if (!says_so(ticket.status)) findings.add("send_combine: " + ticket.status.to_string());
    } else if (!missing.contains(kVictim)) {
      findings.add("no report names the rank that fails");
    }
  };
  const support::RunResult result = support::run_as_threads(kRanks, body);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

INSTANTIATE_TEST_SUITE_P(
    At, NoMemory,
    ::testing::Values(base::TestPoint::before_guard, base::TestPoint::before_payload,
                      base::TestPoint::before_publish, base::TestPoint::before_await,
                      base::TestPoint::before_read, base::TestPoint::before_done));

TEST(MovedFrom, AWorldMakesNoCommunicators) {
  auto worlds = World::threads(1);
  ASSERT_TRUE(worlds.ok()) << worlds.status().to_string();
  const World taken = std::move(worlds->front());
  EXPECT_EQ(Communicator::create(worlds->front(), kShape).status().code(),
            StatusCode::failed_precondition);
}

}  // namespace
}  // namespace sluice
