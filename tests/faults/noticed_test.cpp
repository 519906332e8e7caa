// SPDX-License-Identifier: MIT
//
// How soon, with the settings that there are by default, all others' reports name a process that is killed, frozen, or cut
// off with its whole node: it is idle, has sent and waits, or has received. Nodes are apart in namespaces of their own, so that
// a link between them can be cut.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>

#include "base/deadline.hpp"
#include "faults/echo_round.hpp"
#include "faults/strike.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

constexpr int kRanks = 4;
constexpr int kVictim = 3;
constexpr int kFaultyRound = 5;
constexpr int kRounds = 12;

using Moment = EchoRound::Moment;

struct Fault {
  const char* name;
  int node_size;  // 2: it has a neighbour; 3: it is alone on its node.
  What what;
  Moment when;
  Mode mode;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

class Noticed : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(GetParam().node_size).c_str(), 1);
    ::setenv("SLUICE_TEST_NETNS", "1", 1);
    ::setenv("SLUICE_NETWORK", "tcp,net", 1);
  }
  void TearDown() override {
    ::unsetenv("SLUICE_TEST_NETNS");
    ::unsetenv("SLUICE_TEST_NODE_SIZE");
  }
};

TEST_P(Noticed, ByAllOthersInTime) {
  const Fault fault = GetParam();
  const Time time;
  const auto body = [&](World& world, support::Findings& findings) {
    CommunicatorOptions options = EchoRound::options();
    options.mode = fault.mode;
    auto made = Communicator::create(world, EchoRound::shape(kRanks), options);
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    const auto processes = world.all_gather(std::to_string(::getpid()));
    if (!processes.ok()) return findings.add("all_gather: " + processes.status().to_string());
    const int rank = world.rank();
    const bool cut = fault.what == What::cut_off;
    const bool on_its_node = rank / fault.node_size == kVictim / fault.node_size;
    // Who is cut off with it still hears it, and no longer who is not.
    const int awaited = cut && on_its_node ? 0 : kVictim;
    std::int64_t named_ns = 0;
    EchoRound rounds(*made, findings);
    for (int round = 0; round < kRounds; ++round) {
      const EchoRound::Outcome seen = rounds.run(round, [&](Moment when) {
        if (round == kFaultyRound && rank == kVictim && when == fault.when) {
          strike(fault.what, time, findings);
        }
      });
      const std::int64_t now_ns = base::now_ns();
      if (named_ns != 0 || !seen.missing.contains(awaited)) continue;
      const bool by_dispatch = seen.dispatch.missing.contains(awaited);
      named_ns = now_ns - (by_dispatch ? static_cast<std::int64_t>(seen.combine_seconds * 1e9) : 0);
    }
    if (cut && rank == kVictim) reconnect(findings);  // For the next test.
    // Of a frozen one nothing more is expected, but it would keep the test waiting.
    if (rank == 0 && fault.what == What::frozen) {
      ::kill(std::atoi((*processes)[kVictim].c_str()), SIGKILL);
    }
    check_named(fault.what, time, awaited, named_ns, findings);
  };
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(60);
  options.leave = false;
  options.waits_at_end = true;
  const support::RunResult result = support::run_as_processes(kRanks, body, options);
  if (!expect_named(result, fault.name, kVictim)) GTEST_SKIP() << result.failures[0];
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Noticed,
    ::testing::Values(
        Fault{"KilledIdle", 2, What::killed, Moment::idle, Mode::latency},
        Fault{"KilledSent", 2, What::killed, Moment::sent, Mode::throughput},
        Fault{"KilledBetween", 2, What::killed, Moment::between, Mode::latency},
        Fault{"KilledAloneIdle", 3, What::killed, Moment::idle, Mode::latency},
        Fault{"KilledAloneSent", 3, What::killed, Moment::sent, Mode::throughput},
        Fault{"KilledAloneBetween", 3, What::killed, Moment::between, Mode::throughput},
        Fault{"FrozenIdle", 2, What::frozen, Moment::idle, Mode::latency},
        Fault{"FrozenSent", 2, What::frozen, Moment::sent, Mode::throughput},
        Fault{"FrozenBetween", 2, What::frozen, Moment::between, Mode::latency},
        Fault{"FrozenAloneIdle", 3, What::frozen, Moment::idle, Mode::latency},
        Fault{"FrozenAloneSent", 3, What::frozen, Moment::sent, Mode::throughput},
        Fault{"FrozenAloneBetween", 3, What::frozen, Moment::between, Mode::throughput},
        Fault{"CutOffIdle", 2, What::cut_off, Moment::idle, Mode::latency},
        Fault{"CutOffSent", 2, What::cut_off, Moment::sent, Mode::throughput},
        Fault{"CutOffBetween", 2, What::cut_off, Moment::between, Mode::throughput},
        Fault{"CutOffAloneIdle", 3, What::cut_off, Moment::idle, Mode::latency},
        Fault{"CutOffAloneSent", 3, What::cut_off, Moment::sent, Mode::throughput},
        Fault{"CutOffAloneBetween", 3, What::cut_off, Moment::between, Mode::latency}),
    [](const ::testing::TestParamInfo<Fault>& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace sluice::faults
