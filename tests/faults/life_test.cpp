// SPDX-License-Identifier: MIT
//
// Ranks that leave, and ranks that end while a communicator is made.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <thread>
#include <vector>

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

/// Stops the processes for a while, from a child that only makes system calls. Its process.
pid_t stop_for_a_while(const std::vector<pid_t>& processes, milliseconds after,
                       milliseconds length) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto rest = [](milliseconds time) {
    const timespec span{time.count() / 1000, time.count() % 1000 * 1'000'000};
    ::nanosleep(&span, nullptr);
  };
  rest(after);
  for (const pid_t process : processes) ::kill(process, SIGSTOP);
  rest(length);
  for (const pid_t process : processes) ::kill(process, SIGCONT);
  ::_exit(0);
}

// As a job that is suspended: nobody was silent for longer than anybody else.
TEST_P(Life, AJobThatStandsStillAsAWholeLosesNobody) {
  const Terms terms{3, GetParam(), Layout::expert_major, false};
  const support::RunResult result = support::run_as_processes(
      3,
      [&](World& world, Findings& findings) {
        CommunicatorOptions options = options_of(terms);
        options.deadline = seconds(2);
        Result<Communicator> made = Communicator::create(world, shape_of(terms), options);
        const auto all = world.all_gather(std::to_string(::getpid()));
        if (!made || !all.ok()) return findings.add("no communicator, or no gather");
        std::vector<pid_t> processes;
        for (const std::string& one : *all) processes.push_back(std::stoi(one));
        Member member(terms, *made, findings);
        static_cast<void>(member.run(make_round(terms, 0)));
        pid_t child = -1;
        if (world.rank() == 0) {
          child = stop_for_a_while(processes, milliseconds(1000), milliseconds(3500));
        } else {
          std::this_thread::sleep_for(milliseconds(1500));  // They compute; rank 0 waits.
        }
        for (int number = 1; number < 4; ++number) {
          const RoundResult round = member.run(make_round(terms, number));
          for (const RankSet& missing : {round.dispatch_missing, round.combine_missing}) {
            if (!missing.empty()) findings.add("missing: " + text_of(missing));
          }
          if (number == 1 && child > 0 && round.longest_half < seconds(3)) {
            findings.set_note("nothing was stopped");
          }
        }
        if (child > 0) ::waitpid(child, nullptr, 0);
        static_cast<void>(world.barrier());
      },
      options());
  EXPECT_TRUE(result.failures.empty()) << result.text();
  EXPECT_EQ(result.notes[0], "");
}

INSTANTIATE_TEST_SUITE_P(Faults, Life, ::testing::Values(Mode::latency, Mode::throughput),
                         [](const auto& one) { return std::string(to_string(one.param)); });

}  // namespace
}  // namespace sluice::faults
