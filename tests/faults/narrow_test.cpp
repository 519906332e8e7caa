// SPDX-License-Identifier: MIT
//
// Ranks on two nodes, as threads, over a network on which one operation takes twice as long as the patience: nobody who is busy
// with it is taken for silent, since signs of life do not wait for all of its rows.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "faults/echo_round.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

constexpr int kRanks = 2;
constexpr int kTokens = 4096;
constexpr int kHidden = 4096;  // 67 MB of f32: 1.7 s at 40 MB/s.

TEST(NarrowNetwork, LongOperationsAreNotTakenForSilence) {
  constexpr const char* kSettings[][2] = {{"SLUICE_TEST_NODE_SIZE", "1"},
                                          {"SLUICE_TEST_WIRE", "narrow"},
                                          {"SLUICE_NETWORK", "tcp,net"},
                                          {"SLUICE_NETWORK_ADDRESS", "127.0.0.1"}};
  for (const auto& [name, value] : kSettings) ::setenv(name, value, 1);
  const auto body = [&](World& world, support::Findings& findings) {
    const Shape shape{2 * kRanks, EchoRound::kTopk, kHidden, kTokens};
    auto made = Communicator::create(world, shape, EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    const EchoRound::Outcome seen = EchoRound(*made, findings).run(0);
    fmt::print("rank {}: {:.2f} and {:.2f} s\n", world.rank(), seen.dispatch_seconds,
               seen.combine_seconds);
    if (!seen.missing.empty()) findings.add("a rank was taken for silent");
  };
  const support::RunResult result = support::run_as_threads(kRanks, body, {});
  EXPECT_TRUE(result.failures.empty()) << result.text();
  for (const auto& [name, value] : kSettings) ::unsetenv(name);
}

}  // namespace
}  // namespace sluice::faults
