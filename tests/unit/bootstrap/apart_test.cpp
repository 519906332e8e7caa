// SPDX-License-Identifier: MIT
//
// Worlds whose nodes are apart in namespaces: an address of one is none of another.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "ranks.hpp"
#include "sluice/communicator.hpp"
#include "sluice/world.hpp"
#include "support/run_ranks.hpp"

namespace sluice {
namespace {

/// Every rank a node in namespaces of its own.
void run_apart(int ranks, const support::RankBody& body) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  ::setenv("SLUICE_TEST_NODE_SIZE", "1", 1);
  ::setenv("SLUICE_TEST_NETNS", "1", 1);
  const auto result = support::run_as_processes(ranks, body);
  ::unsetenv("SLUICE_TEST_NETNS");
  ::unsetenv("SLUICE_TEST_NODE_SIZE");
  if (!result.failures.empty() && result.failures[0].find("no namespaces") != std::string::npos) {
    GTEST_SKIP() << result.failures[0];
  }
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

TEST(Apart, APartWithoutRankZeroMeetsOnOneOfItsOwnNodes) {
  run_apart(3, [](World& world, support::Findings& findings) {
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
}

// As a name of a machine's own does where /etc/hosts has it as 127.0.1.1: there every machine would reach itself.
TEST(Apart, ALoopbackAddressIsRefusedByAll) {
  run_apart(3, [](World& world, support::Findings& findings) {
    if (world.rank() > 0) ::setenv("SLUICE_NETWORK_ADDRESS", "127.0.0.1", 1);
    auto all = world.split(0, world.rank());
    if (!all.ok()) return findings.add("split: " + all.status().to_string());
    auto made =
        Communicator::create(*all, {.experts = 6, .top_k = 2, .hidden = 64, .max_tokens = 4});
    const std::string text = made.status().to_string();
    if (made.status().code() == StatusCode::unimplemented) return;  // Without libfabric.
    for (const char* words :
         {"unavailable", "is at a loopback address", "SLUICE_NETWORK_ADDRESS"}) {
      if (text.find(words) == std::string::npos) {
        findings.add(std::string("expected '") + words + "', seen " + text);
      }
    }
    // It is the communicator's failure alone.
    if (Status status = all->barrier(); !status.ok()) {
      findings.add("barrier: " + status.to_string());
    }
  });
}

// Whose name nobody else knows: others are told an address.
TEST(Apart, AWorldOfACallersGatherMeetsAtANameThatRankZeroAloneKnows) {
  run_apart(2, [](World& world, support::Findings& findings) {
    if (world.rank() == 0) {
      // In this node's own mount namespace.
      char hosts[] = "/tmp/hosts-XXXXXX";
      const base::Descriptor file(::mkstemp(hosts));
      const std::string line = std::string(std::getenv("SLUICE_NETWORK_ADDRESS")) + " rank-zero\n";
      if (::write(file.number(), line.data(), line.size()) < 0 ||
          ::mount(hosts, "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
        return findings.add(std::string("/etc/hosts: ") + std::strerror(errno));
      }
      ::setenv("SLUICE_NETWORK_ADDRESS", "rank-zero", 1);
    }
    auto other = World::create(world.rank(), world.size(),
                               [&](std::string_view blob) { return world.all_gather(blob); });
    if (!other.ok()) return findings.add("create: " + other.status().to_string());
    if (Status status = other->barrier(); !status.ok()) {
      findings.add("barrier: " + status.to_string());
    }
    static_cast<void>(other->leave(std::chrono::seconds(10)));
  });
}

}  // namespace
}  // namespace sluice
