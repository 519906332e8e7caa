// SPDX-License-Identifier: MIT
//
// Ranks that leave, and ranks that end while a communicator is made.
#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "faults/scene.hpp"

namespace sluice::faults {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using support::Findings;

/// Everything that this process writes to stderr from now on.
class StderrText {
 public:
  StderrText() : file_(::memfd_create("stderr", MFD_CLOEXEC)) { ::dup2(file_, STDERR_FILENO); }
  ~StderrText() { ::close(file_); }
  StderrText(const StderrText&) = delete;
  StderrText& operator=(const StderrText&) = delete;
  std::string read() const {
    std::string text(1 << 16, '\0');
    const ssize_t bytes = ::pread(file_, text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  int file_;
};

std::optional<Communicator> make(const Terms& terms, World& world, Findings& findings) {
  Result<Communicator> made = Communicator::create(world, shape_of(terms), options_of(terms));
  if (made) return std::move(made).value();
  findings.add("Communicator::create: " + made.status().to_string());
  return std::nullopt;
}

void check_missing(Findings& findings, const RankSet& expected, const RoundResult& seen) {
  if (seen.dispatch_missing != expected || seen.combine_missing != expected) {
    findings.add(fmt::format("report.missing: expected {}, seen {} and {}", text_of(expected),
                             text_of(seen.dispatch_missing), text_of(seen.combine_missing)));
  }
  if (seen.longest_half > seconds(10)) findings.add("a half waited for a rank that is gone");
}

// One rank leaves after some rounds: at once missing, and nothing that went wrong.
void leave_body(const Terms& terms, World& world, Findings& findings) {
  constexpr int kLeaver = 1;
  constexpr int kRounds = 7;
  const StderrText log;
  std::optional<Communicator> communicator = make(terms, world, findings);
  if (!communicator) return;
  Member member(terms, *communicator, findings);
  for (int number = 0; number < kRounds; ++number) {
    check_missing(findings, {}, member.run(make_round(terms, number)));
  }
  if (world.rank() == kLeaver) {
    const Status left = world.leave(seconds(10));
    if (!left.ok()) findings.add("leave: " + left.to_string());
    return;
  }
  RankSet gone;
  gone.insert(kLeaver);
  for (int number = kRounds; number < 2 * kRounds; ++number) {
    const RoundResult result = member.run(make_round(terms, number));
    // Whoever is fast may still find the leaver there in its first round: leaving takes a moment,
    // but a rank that has not sent is waited for until it has left.
    check_missing(findings, gone, result);
  }
  const std::string text = log.read();
  if (text.find("[error]") != std::string::npos) findings.add("the log has errors: " + text);
}

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
      4, [&](World& world, Findings& findings) { leave_body(terms, world, findings); }, options());
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
