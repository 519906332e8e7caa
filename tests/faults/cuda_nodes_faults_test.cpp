// SPDX-License-Identifier: MIT
//
// Processes on two nodes with GPUs, of which one is killed or frozen between the halves of a round, or leaves: kernels of the others
// stop waiting for it and for those whom they reached through it, and what they get is right, bit for bit, but for
// what their reports name. And processes of which a thread lets CUDA launch nothing for as long as their kernels wait.
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault.hpp"
#include "faults/round.hpp"
#include "routing/node_map.hpp"
#include "support/gpu_main.hpp"
#include "support/gpu_place.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

using std::chrono::seconds;
using support::Findings;

constexpr int kNodeSize = 2;
constexpr int kRoundsBefore = 7;  // All banks have been used by then.
constexpr int kRoundsAfter = 9;
constexpr int kSettled = 3;  // Of these, the last but one: everybody knows, and nobody has ended.
constexpr int kRounds = kRoundsBefore + 1 + kRoundsAfter;
// Far below the deadline of a wait.
constexpr seconds kLongBefore{10};
// Far longer than messages are on their way.
constexpr seconds kPassedOn{1};

struct Case {
  const char* name;
  int signal;  // 0: it leaves.
  const char* fault;
  int victim;
  Layout layout;
  Mode mode = Mode::latency;
};
void PrintTo(const Case& at, std::ostream* out) {
  *out << at.name;
}

Terms terms_of(const Case& at) {
  Terms terms;
  terms.layout = at.layout;
  terms.mode = at.mode;
  return terms;
}

/// Whom `rank` has lost when all know: the victim, and those whom one of the two reached through it.
RankSet lost_of(int rank, int victim, const routing::NodeMap& nodes) {
  RankSet lost;
  lost.insert(victim);
  const int node = nodes.node_of(victim);
  for (int other = 0; other < nodes.ranks(); ++other) {
    const auto through = [&](int source, int target) {
      return nodes.node_of(target) == node && nodes.node_of(source) != node &&
             nodes.rail_peer(source, node) == victim;
    };
    if (through(rank, other) || through(other, rank)) lost.insert(other);
  }
  return lost;
}

bool is_within(const RankSet& some, const RankSet& all) {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (some.contains(rank) && !all.contains(rank)) return false;
  }
  return true;
}

class Rounds {
 public:
  Rounds(const Case& at, World& world, Communicator& communicator, Findings& findings)
      : at_(at),
        world_(world),
        findings_(findings),
        member_(terms_of(at), communicator, findings),
        lost_(lost_of(world.rank(), at.victim,
                      routing::NodeMap::of_sizes(support::node_sizes(world.size())))) {}

  void run() {
    for (int number = 0; number < kRounds; ++number) {
      findings_.set_context(fmt::format("round {}: ", number));
      RoundOptions options;
      const bool strikes = number == kRoundsBefore && world_.rank() == at_.victim;
      if (strikes && at_.signal == 0) {
        const Status left = world_.leave(kLongBefore);
        if (!left.ok()) findings_.add("leave: " + left.to_string());
        std::this_thread::sleep_for(kPassedOn);  // As below.
        return;
      }
      // What the victim passed on when it left may have come in part: of a source whose counts have come, and whose rows have
      // not, the rows keep their numbers, which the reference knows nothing of.
      RankSet only_victim;
      only_victim.insert(at_.victim);
      const bool in_part = number == kRoundsBefore && at_.signal == 0 && lost_ != only_victim;
      options.check = !strikes && !in_part;
      options.on_stage = [&](Stage stage) {
        if (!strikes || stage != fault_named(at_.fault).stage) return;
        // Its kernels have ended, its progress thread may be in the midst of what they have sent, or of what it passes on.
        std::this_thread::sleep_for(kPassedOn);
        ::kill(::getpid(), at_.signal);
      };
      check(number, member_.run(make_round(terms_of(at_), number), options));
    }
  }

 private:
  void check(int number, const RoundResult& result) {
    if (result.longest_half > kLongBefore) findings_.add("a half waited for its deadline");
    // A process that ends without ado takes its last answers with it.
    const bool settled = number >= kRounds - 1 - kSettled && number < kRounds - 1;
    if (number >= kRoundsBefore && !settled) return;
    const RankSet expected = settled ? lost_ : RankSet{};
    // What the victim sent, or passed on, in its last combine may die with it on the way. Its dispatch may not: without
    // that it would not have had all answers.
    const bool last = number == kRoundsBefore - 1;
    const bool combine_good =
        result.combine_missing == expected || (last && is_within(result.combine_missing, lost_));
    if (result.dispatch_missing == expected && combine_good) return;
    findings_.add(fmt::format("missing: expected {}, seen {} and {}", text_of(expected),
                              text_of(result.dispatch_missing), text_of(result.combine_missing)));
  }

  const Case& at_;
  World& world_;
  Findings& findings_;
  Member member_;
  RankSet lost_;
};

void body(const Case& at, World& world, Findings& findings) {
  const std::unique_ptr<support::Place> place = support::gpu_place(world.rank(), seconds(20));
  support::set_place(place.get());
  const auto processes = world.all_gather(std::to_string(::getpid()));
  if (!processes.ok()) return findings.add("all_gather: " + processes.status().to_string());
  CommunicatorOptions options = options_of(terms_of(at));
  support::place().adapt(options);
  Result<Communicator> made = Communicator::create(world, shape_of(terms_of(at)), options);
  if (!made) return findings.add("create: " + made.status().to_string());
  Rounds(at, world, *made, findings).run();
  // A frozen process would keep the test waiting.
  const std::string& victim = (*processes)[static_cast<std::size_t>(at.victim)];
  pid_t process = 0;
  std::from_chars(victim.data(), victim.data() + victim.size(), process);
  if (process > 0 && world.rank() == (at.victim + 1) % world.size()) ::kill(process, SIGKILL);
  support::set_place(nullptr);
}

/// A thread that frees GPU memory over and over: each time it waits until no kernel runs, and nobody launches any meanwhile.
class Freeing {
 public:
  Freeing() {
    (void)cudaGetDevice(&device_);
    thread_ = std::thread([this] { run(); });
  }
  ~Freeing() {
    ends_.store(true);
    thread_.join();
  }
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;

  int times() const { return times_.load(); }

 private:
  void run() {
    (void)cudaSetDevice(device_);
    while (!ends_.load()) {
      void* memory = nullptr;
      if (cudaMalloc(&memory, std::size_t{4} << 20) != cudaSuccess) continue;
      if (cudaFree(memory) == cudaSuccess) times_.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }

  int device_ = 0;
  std::atomic<bool> ends_{false};
  std::atomic<int> times_{0};
  std::thread thread_;
};

/// Rounds that need nothing to be launched but themselves.
void free_meanwhile(const Terms& terms, World& world, Findings& findings) {
  const std::unique_ptr<support::Place> place = support::gpu_place(world.rank(), seconds(20));
  support::set_place(place.get());
  CommunicatorOptions options = options_of(terms);
  support::place().adapt(options);
  Result<Communicator> made = Communicator::create(world, shape_of(terms), options);
  if (!made) return findings.add("create: " + made.status().to_string());
  {
    Member member(terms, *made, findings);
    const Freeing freeing;
    for (int number = 0; number < kRounds && findings.empty(); ++number) {
      findings.set_context(fmt::format("round {}: ", number));
      const RoundResult result = member.run(make_round(terms, number));
      if (result.longest_half > kLongBefore) findings.add("a half waited for its deadline");
      if (result.dispatch_missing == RankSet{} && result.combine_missing == RankSet{}) continue;
      findings.add(fmt::format("missing: {} and {}", text_of(result.dispatch_missing),
                               text_of(result.combine_missing)));
    }
    if (freeing.times() < kRounds) findings.add("hardly anything was freed");
  }
  support::set_place(nullptr);
}

template <typename Parameter>
class OnTwoNodes : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(kNodeSize).c_str(), 1);
    ::setenv("SLUICE_NETWORK", "tcp,net", 1);
    // Simulated on few processors, they are silent for longer than on GPUs.
    if (SLUICE_CUDA_SIMULATED) ::setenv("SLUICE_NETWORK_PATIENCE_MS", "3000", 1);
  }
};

class GpusOnTwoNodes : public OnTwoNodes<Case> {};

TEST_P(GpusOnTwoNodes, OthersGoOn) {
  const Case at = GetParam();
  support::RunOptions options;
  options.watchdog = seconds(100);
  options.leave = false;
  const support::RunResult result = support::run_as_processes(
      terms_of(at).ranks, [&](World& world, Findings& findings) { body(at, world, findings); },
      options);
  const std::string meant = fmt::format("rank {}: ended by signal {}", at.victim, SIGKILL);
  bool struck = at.signal == 0;
  for (const std::string& failure : result.failures) {
    struck = struck || failure.starts_with(meant);
    if (!failure.starts_with(meant)) ADD_FAILURE() << failure;
  }
  EXPECT_TRUE(struck);
}

class GpuMemoryOnTwoNodes : public OnTwoNodes<Mode> {
 protected:
  void SetUp() override {
    OnTwoNodes::SetUp();
    // Nobody is to be given up, however slow the processors are that play GPUs.
    if (SLUICE_CUDA_SIMULATED) ::setenv("SLUICE_NETWORK_PATIENCE_MS", "60000", 1);
  }
};

TEST_P(GpuMemoryOnTwoNodes, IsFreedWhileOperationsWait) {
  Terms terms;
  terms.mode = GetParam();
  support::RunOptions options;
  options.watchdog = std::min(options.watchdog, std::chrono::milliseconds(seconds(100)));
  const support::RunResult result = support::run_as_processes(
      terms.ranks,
      [&](World& world, Findings& findings) { free_meanwhile(terms, world, findings); }, options);
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
}

INSTANTIATE_TEST_SUITE_P(Faults, GpuMemoryOnTwoNodes,
                         ::testing::Values(Mode::latency, Mode::throughput),
                         [](const ::testing::TestParamInfo<Mode>& mode) {
                           return mode.param == Mode::latency ? "latency" : "throughput";
                         });

INSTANTIATE_TEST_SUITE_P(
    Faults, GpusOnTwoNodes,
    ::testing::Values(
        Case{"KilledIdle", SIGKILL, "IdleBeforeDispatch", 0, Layout::expert_slab},
        Case{"KilledSent", SIGKILL, "BetweenTheDispatchHalves", 3, Layout::expert_major},
        Case{"KilledBetween", SIGKILL, "BetweenDispatchAndCombine", 1, Layout::rank_major},
        Case{"FrozenIdle", SIGSTOP, "IdleBeforeDispatch", 2, Layout::expert_major},
        Case{"FrozenSent", SIGSTOP, "BetweenTheDispatchHalves", 1, Layout::rank_major},
        Case{"FrozenBetween", SIGSTOP, "BetweenDispatchAndCombine", 3, Layout::expert_slab},
        Case{"ThroughputKilledIdle", SIGKILL, "IdleBeforeDispatch", 3, Layout::expert_major,
             Mode::throughput},
        Case{"ThroughputKilledSent", SIGKILL, "BetweenTheDispatchHalves", 0, Layout::rank_major,
             Mode::throughput},
        Case{"ThroughputFrozenBetween", SIGSTOP, "BetweenDispatchAndCombine", 1,
             Layout::expert_slab, Mode::throughput},
        // The last of its node: what comes from those before it, which others reached through it, has been taken.
        Case{"Left", 0, "IdleBeforeDispatch", 1, Layout::expert_slab},
        Case{"ThroughputLeft", 0, "IdleBeforeDispatch", 3, Layout::expert_major, Mode::throughput}),
    [](const ::testing::TestParamInfo<Case>& at) { return std::string(at.param.name); });

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count_before_forking);
}
