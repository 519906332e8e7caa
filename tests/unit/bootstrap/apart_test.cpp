// SPDX-License-Identifier: MIT
//
// Worlds whose nodes are apart in namespaces: an address of one is none of another.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "ranks.hpp"
#include "sluice/world.hpp"
#include "support/run_ranks.hpp"

namespace sluice {
namespace {

TEST(Apart, APartWithoutRankZeroMeetsOnOneOfItsOwnNodes) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  ::setenv("SLUICE_TEST_NODE_SIZE", "1", 1);
  ::setenv("SLUICE_TEST_NETNS", "1", 1);
  const auto result = support::run_as_processes(3, [](World& world, support::Findings& findings) {
    auto part = world.split(world.rank() == 0 ? 0 : 1, 0);
    if (!part.ok()) return findings.add("split: " + part.status().to_string());
    const auto all = part->all_gather(std::to_string(world.rank()));
    if (!all.ok()) return findings.add("all_gather: " + all.status().to_string());
    std::string seen;
    for (const std::string& one : *all) seen += one;
    const std::string expected = world.rank() == 0 ? "0" : "12";
    if (seen != expected) findings.add("ranks " + seen + ", expected " + expected);
    if (Status status = part->leave(std::chrono::seconds(10)); !status.ok())
      findings.add("leave: " + status.to_string());
  });
  ::unsetenv("SLUICE_TEST_NETNS");
  ::unsetenv("SLUICE_TEST_NODE_SIZE");
  if (!result.failures.empty() && result.failures[0].find("no namespaces") != std::string::npos) {
    GTEST_SKIP() << result.failures[0];
  }
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

}  // namespace
}  // namespace sluice
