// SPDX-License-Identifier: MIT
//
// Processes on two nodes, of which one is killed or frozen: every call of the others returns, soon they
// all know of it, and what they get is right or reported as lost. Its neighbours may lose more than the
// victim: what it passed on, too.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "sluice/communicator.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kHidden = 64;
constexpr int kTokens = 6;
constexpr int kTopk = 3;
constexpr int kRounds = 14;
constexpr int kFaultyRound = 5;

enum class When { idle, between, sent };
struct Fault {
  const char* name;
  int signal;
  When when;
  int victim;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One rank's rounds: experts that return what they get, so that every token comes back as often as
/// there are ranks (rank_major) that answered.
class Rounds {
 public:
  Rounds(World& world, Communicator& communicator, const Fault& fault, support::Findings& findings)
      : world_(world), communicator_(communicator), fault_(fault), findings_(findings) {}

  void run() {
    for (int round = 0; round < kRounds; ++round) one(round);
    if (world_.rank() == fault_.victim) return;
    if (!missing_.contains(fault_.victim)) findings_.add("no report names the victim");
  }

 private:
  void strike(int round, When when) const {
    if (round == kFaultyRound && world_.rank() == fault_.victim && fault_.when == when) {
      ::kill(::getpid(), fault_.signal);
    }
  }

  void one(int round) {
    const int rank = world_.rank();
    std::vector<float> x(kTokens * kHidden);
    std::vector<std::int32_t> ids(kTokens * kTopk);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>((rank + round + static_cast<int>(i)) % 7 + 1);
    }
    for (int i = 0; i < kTokens * kTopk; ++i) {
      ids[static_cast<std::size_t>(i)] = (i * 5 + rank * 3 + round) % (2 * kRanks);
    }
    strike(round, When::idle);
    DispatchOptions options;
    options.codec = Codec{CodecKind::f32};
    const auto start = Clock::now();
    const DispatchTicket ticket =
        communicator_.send_dispatch({x.data(), DType::f32, kTokens, kHidden},
                                    {ids.data(), DType::i32, kTokens, kTopk}, {}, options);
    strike(round, When::sent);
    const Received received = communicator_.receive_dispatch(ticket);
    check(round, "dispatch", received.status, received.report, start);
    strike(round, When::between);
    std::vector<float> out(x.size());
    CombineOutputs outputs;
    outputs.renormalize = false;
    const auto middle = Clock::now();
    const CombineResult result = communicator_.combine(
        received.rows, received.handle, {out.data(), DType::f32, kTokens, kHidden}, {}, outputs);
    check(round, "combine", result.status, result.report, middle);
    check_sums(round, x, ids, out, result.report);
  }

  void check(int round, const char* what, const Status& status, const Report& report,
             Clock::time_point start) {
    if (!status.ok())
      findings_.add(fmt::format("round {}: {}: {}", round, what, status.to_string()));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (report.missing.contains(rank)) missing_.insert(rank);
    }
    // What a rank has sent in its last round but one may die with it on the way.
    if (round < kFaultyRound - 1 && !report.missing.empty()) {
      findings_.add(fmt::format("round {}: {}: a rank is missing before the fault", round, what));
    }
    // The deadline is not needed; and when all know, nobody waits any more, but in the last round for
    // processes that have ended.
    const bool settled = round >= kRounds - 4 && round < kRounds - 1;
    const double limit = settled ? 0.9 : 5.0;
    if (round >= kFaultyRound && seconds_since(start) > limit) {
      findings_.add(fmt::format("round {}: {} took {:.3f} s", round, what, seconds_since(start)));
    }
  }

  void check_sums(int round, const std::vector<float>& x, const std::vector<std::int32_t>& ids,
                  const std::vector<float>& out, const Report& report) {
    for (int token = 0; token < kTokens; ++token) {
      RankSet owners;
      int expected = 0;
      for (int k = 0; k < kTopk; ++k) {
        const int owner = ids[static_cast<std::size_t>(token * kTopk + k)] / 2;
        if (!owners.contains(owner)) ++expected;
        owners.insert(owner);
      }
      const auto at = static_cast<std::size_t>(token * kHidden);
      const float times = out[at] / x[at];
      bool right = times == static_cast<float>(static_cast<int>(times)) && times >= 0.0F &&
                   times <= static_cast<float>(expected);
      if (report.lost_routes == 0) right = right && times == static_cast<float>(expected);
      for (std::size_t h = at; h < at + kHidden; ++h) right = right && out[h] == times * x[h];
      if (!right) {
        findings_.add(fmt::format("round {}: token {}: {} times its row, expected {}", round, token,
                                  times, expected));
      }
    }
  }

  World& world_;
  Communicator& communicator_;
  const Fault& fault_;
  support::Findings& findings_;
  RankSet missing_;
};

class OnTwoNodes : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
    ::setenv("SLUICE_NETWORK", "tcp,net", 1);
  }
  void TearDown() override { ::unsetenv("SLUICE_TEST_NODE_SIZE"); }
};

TEST_P(OnTwoNodes, OthersGoOn) {
  const Fault fault = GetParam();
  const auto body = [&](World& world, support::Findings& findings) {
    CommunicatorOptions options;
    options.layout = Layout::rank_major;
    options.dispatch_codec = {CodecKind::f32};
    options.combine_codec = CodecKind::f32;
    options.deadline = options.first_deadline = std::chrono::seconds(15);
    auto made = Communicator::create(world, Shape{2 * kRanks, kTopk, kHidden, kTokens}, options);
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    auto processes = world.all_gather(std::to_string(::getpid()));
    if (!processes.ok()) return findings.add("all_gather: " + processes.status().to_string());
    const int victim = std::atoi((*processes)[static_cast<std::size_t>(fault.victim)].c_str());
    Rounds(world, *made, fault, findings).run();
    // A frozen process would keep the test waiting.
    if (world.rank() == (fault.victim + 1) % kRanks) ::kill(victim, SIGKILL);
  };
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(60);
  options.leave = false;
  const support::RunResult result = support::run_as_processes(kRanks, body, options);
  for (const std::string& failure : result.failures) {
    const bool meant =
        failure.starts_with(fmt::format("rank {}: ended by signal {}", fault.victim, SIGKILL));
    if (!meant) ADD_FAILURE() << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, OnTwoNodes,
                         ::testing::Values(Fault{"KilledIdle", SIGKILL, When::idle, 0},
                                           Fault{"KilledSent", SIGKILL, When::sent, 3},
                                           Fault{"KilledBetween", SIGKILL, When::between, 1},
                                           Fault{"FrozenIdle", SIGSTOP, When::idle, 2},
                                           Fault{"FrozenSent", SIGSTOP, When::sent, 1},
                                           Fault{"FrozenBetween", SIGSTOP, When::between, 3}),
                         [](const ::testing::TestParamInfo<Fault>& each) {
                           return std::string(each.param.name);
                         });

}  // namespace
}  // namespace sluice::faults
