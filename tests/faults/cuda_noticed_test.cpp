// SPDX-License-Identifier: MIT
//
// As noticed_test.cpp, for ranks with GPUs on two nodes, at most two of them on each: the settings are the default ones, and what
// ranks get is compared besides, bit for bit.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>

#include "base/deadline.hpp"
#include "faults/round.hpp"
#include "faults/strike.hpp"
#include "support/gpu_main.hpp"
#include "support/gpu_place.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

using std::chrono::seconds;
using support::Findings;

constexpr int kFaultyRound = 7;  // All banks have been used by then.
constexpr int kRounds = 14;

struct Case {
  const char* name;
  int ranks;  // On two nodes; the last one is the victim.
  What what;
  Stage when;
  Mode mode = Mode::latency;

  int victim() const { return ranks - 1; }
  int node_size() const { return ranks / 2; }
};
void PrintTo(const Case& at, std::ostream* out) {
  *out << at.name;
}

Terms terms_of(const Case& at) {
  Terms terms;
  terms.ranks = at.ranks;
  terms.mode = at.mode;
  return terms;
}

void body(const Case& at, const Time& time, World& world, Findings& findings) {
  const auto place = support::gpu_place(world.rank(), seconds(20));
  support::set_place(place.get());
  const auto processes = world.all_gather(std::to_string(::getpid()));
  if (!processes.ok()) return findings.add("all_gather: " + processes.status().to_string());
  CommunicatorOptions options = options_of(terms_of(at));
  support::place().adapt(options);
  auto made = Communicator::create(world, shape_of(terms_of(at)), options);
  if (!made.ok()) return findings.add("create: " + made.status().to_string());
  const int rank = world.rank();
  const bool is_victim = rank == at.victim();
  const bool cut = at.what == What::cut_off;
  const bool with_it = rank / at.node_size() == at.victim() / at.node_size();
  // Who is cut off with it still hears it, and no longer who is not.
  const int awaited = cut && with_it ? 0 : at.victim();
  Member member(terms_of(at), *made, findings);
  std::int64_t named_ns = 0;
  for (int number = 0; number < kRounds; ++number) {
    findings.set_context(fmt::format("round {}: ", number));
    const bool strikes = is_victim && number == kFaultyRound;
    RoundOptions round;
    // What the last operation before may still have on its way is not what this is about.
    round.check = !strikes && number != kFaultyRound - 1;
    std::int64_t dispatched_ns = 0;
    std::int64_t combined_ns = 0;
    round.on_stage = [&](Stage stage) {
      if (stage == Stage::combine_send) dispatched_ns = base::now_ns();
      if (stage == Stage::end) combined_ns = base::now_ns();
      if (!strikes || stage != at.when) return;
      std::this_thread::sleep_for(seconds(1));  // All that it passes on has been.
      strike(at.what, time, findings);
    };
    const RoundResult seen = member.run(make_round(terms_of(at), number), round);
    if (number < kFaultyRound - 1 &&
        (!seen.dispatch_missing.empty() || !seen.combine_missing.empty()))
      findings.add("a rank is missing");
    if (named_ns != 0) continue;
    if (seen.dispatch_missing.contains(awaited))
      named_ns = dispatched_ns;
    else if (seen.combine_missing.contains(awaited))
      named_ns = combined_ns;
  }
  findings.set_context("");
  if (cut && is_victim) reconnect(findings);
  // Of a frozen one nothing more is expected, but it would keep the test waiting.
  const std::string& victim = (*processes)[static_cast<std::size_t>(at.victim())];
  pid_t process = 0;
  std::from_chars(victim.data(), victim.data() + victim.size(), process);
  if (rank == 0 && at.what == What::frozen && process > 0) ::kill(process, SIGKILL);
  support::set_place(nullptr);
  check_named(at.what, time, awaited, named_ns, findings);
}

class GpusNoticed : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(GetParam().node_size()).c_str(), 1);
    ::setenv("SLUICE_NETWORK", "tcp,net", 1);
    if (GetParam().what == What::cut_off) ::setenv("SLUICE_TEST_NETNS", "1", 1);
  }
  void TearDown() override {
    ::unsetenv("SLUICE_TEST_NETNS");
    ::unsetenv("SLUICE_TEST_NODE_SIZE");
  }
};

TEST_P(GpusNoticed, ByAllOthersInTime) {
  const Case at = GetParam();
  if (const int gpus = support::gpu_count_before_forking(); 2 * gpus < at.ranks || gpus < 2) {
    GTEST_SKIP() << fmt::format("{} GPUs, expected two, and one for every two of {} ranks", gpus,
                                at.ranks);
  }
  const Time time;
  support::RunOptions options;
  options.watchdog = seconds(100);
  options.leave = false;
  const support::RunResult result = support::run_as_processes(
      at.ranks, [&](World& world, Findings& findings) { body(at, time, world, findings); },
      options);
  if (!expect_named(result, at.name, at.victim())) GTEST_SKIP() << result.failures[0];
}

constexpr Stage kIdle = Stage::dispatch_send;
constexpr Stage kSent = Stage::dispatch_receive;
constexpr Stage kBetween = Stage::combine_send;
INSTANTIATE_TEST_SUITE_P(
    Faults, GpusNoticed,
    ::testing::Values(
        Case{"KilledIdle", 4, What::killed, kIdle}, Case{"KilledSent", 4, What::killed, kSent},
        Case{"KilledBetween", 4, What::killed, kBetween},
        Case{"KilledAloneIdle", 2, What::killed, kIdle},
        Case{"KilledAloneSent", 2, What::killed, kSent},
        Case{"KilledAloneBetween", 2, What::killed, kBetween},
        Case{"FrozenIdle", 4, What::frozen, kIdle}, Case{"FrozenSent", 4, What::frozen, kSent},
        Case{"FrozenBetween", 4, What::frozen, kBetween},
        Case{"FrozenAloneIdle", 2, What::frozen, kIdle},
        Case{"FrozenAloneSent", 2, What::frozen, kSent},
        Case{"FrozenAloneBetween", 2, What::frozen, kBetween},
        Case{"CutOffSent", 4, What::cut_off, kSent},
        Case{"CutOffAloneIdle", 2, What::cut_off, kIdle},
        Case{"CutOffAloneSent", 2, What::cut_off, kSent},
        Case{"CutOffAloneBetween", 2, What::cut_off, kBetween},
        Case{"ThroughputKilledIdle", 4, What::killed, kIdle, Mode::throughput},
        Case{"ThroughputFrozenBetween", 4, What::frozen, kBetween, Mode::throughput},
        Case{"ThroughputKilledAloneSent", 2, What::killed, kSent, Mode::throughput},
        Case{"ThroughputKilledAloneBetween", 2, What::killed, kBetween, Mode::throughput},
        Case{"ThroughputFrozenAloneIdle", 2, What::frozen, kIdle, Mode::throughput},
        Case{"ThroughputFrozenAloneSent", 2, What::frozen, kSent, Mode::throughput},
        Case{"ThroughputFrozenAloneBetween", 2, What::frozen, kBetween, Mode::throughput},
        Case{"ThroughputCutOffAloneSent", 2, What::cut_off, kSent, Mode::throughput}),
    [](const ::testing::TestParamInfo<Case>& at) { return std::string(at.param.name); });

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count_before_forking);
}
