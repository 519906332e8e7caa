// SPDX-License-Identifier: MIT
//
// Ranks that leave, and ranks that end while a communicator is made.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "faults/leaver.hpp"
#include "faults/scene.hpp"

namespace sluice::faults {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using support::Findings;

class Life : public ::testing::TestWithParam<Mode> {
 protected:
  static support::RunOptions options() {
    support::RunOptions options;
    options.watchdog = seconds(60);
    options.leave = false;
    return options;
  }
};

TEST_P(Life, LeftIsMissingAtOnceAndNoError) {
  const Terms terms{4, GetParam(), Layout::expert_major, false};
  const support::RunResult result = support::run_as_processes(
      4, [&](World& world, Findings& findings) { run_and_leave(terms, world, findings); },
      options());
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

// The victim ends at some moment of create: the others get a Status, or a communicator without it.
void create_body(const Terms& terms, microseconds life, int victim, World& world,
                 Findings& findings) {
  if (const Status met = world.barrier(); !met.ok()) findings.add(met.to_string());
  if (world.rank() == victim) {
    if (life < microseconds(0)) ::raise(SIGKILL);
    std::thread([life] {
      std::this_thread::sleep_for(life);
      ::kill(::getpid(), SIGKILL);
    }).detach();
  }
  const auto began = std::chrono::steady_clock::now();
  Result<Communicator> made = Communicator::create(world, shape_of(terms), options_of(terms));
  if (world.rank() == victim) {
    for (;;) ::pause();
  }
  if (std::chrono::steady_clock::now() - began > seconds(10)) {
    findings.add("create waited for a rank that is gone");
  }
  if (!made) {
    if (made.status().code() != StatusCode::unavailable || made.status().message().empty()) {
      findings.add("create: expected unavailable, seen " + made.status().to_string());
    }
    findings.set_note("refused");
    return;
  }
  Member member(terms, *made, findings);
  RankSet gone;
  gone.insert(victim);
  // The victim takes part in no round; a peer that got no communicator has ended as well.
  RoundOptions any;
  any.check = false;
  for (int number = 0; number < 3; ++number) {
    const RoundResult result = member.run(make_round(terms, number), any);
    if (!result.dispatch_missing.contains(victim)) findings.add("the victim is not missing");
    if (result.longest_half > seconds(10)) findings.add("a half waited for a rank that is gone");
  }
  findings.set_note("made");
}

TEST_P(Life, DeathDuringCreate) {
  const Terms terms{3, GetParam(), Layout::expert_slab, false};
  constexpr int kVictim = 1;
  Scene scene;
  scene.victims = {{kVictim, {}}};
  for (const int life_us : {-1, 0, 50, 150, 400, 1000, 3000}) {
    const support::RunResult result = support::run_as_processes(
        3,
        [&](World& world, Findings& findings) {
          create_body(terms, microseconds(life_us), kVictim, world, findings);
        },
        options());
    const std::vector<std::string> wrong = unexpected(result, scene);
    EXPECT_TRUE(wrong.empty()) << "after " << life_us << " us:\n" << lines(wrong);
    if (life_us < 0) {
      EXPECT_EQ(result.notes[0], "refused");
      EXPECT_EQ(result.notes[2], "refused");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Life, ::testing::Values(Mode::latency, Mode::throughput),
                         [](const auto& one) { return std::string(to_string(one.param)); });

}  // namespace
}  // namespace sluice::faults
