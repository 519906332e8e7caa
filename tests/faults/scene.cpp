// SPDX-License-Identifier: MIT
#include "faults/scene.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "support/place.hpp"

namespace sluice::faults {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using support::Findings;

// Half of the deadline of every wait that the death of a peer must end.
constexpr seconds kLongBefore{10};

// A frozen rank is noticed by these alone. They grow: a rank that waits for its deadline makes
// those that wait for it late, and must not be taken for frozen itself.
constexpr milliseconds kDispatchDeadline{300};
constexpr milliseconds kCombineDeadline{900};
constexpr milliseconds kNextDeadline{1800};

const Victim* victim_of(const Scene& scene, int rank) {
  for (const Victim& victim : scene.victims) {
    if (victim.rank == rank) return &victim;
  }
  return nullptr;
}

RankSet all_victims(const Scene& scene) {
  RankSet all;
  for (const Victim& victim : scene.victims) all.insert(victim.rank);
  return all;
}

struct Missing {
  RankSet dispatch;
  RankSet combine;
};

// What `rank` must miss in the round of the faults.
Missing missing_in_round(const Scene& scene, int rank) {
  Missing missing;
  for (const Victim& victim : scene.victims) {
    const int ranks = scene.terms.ranks;
    if (!served_dispatch(victim.fault, victim.rank, rank, ranks)) {
      missing.dispatch.insert(victim.rank);
    }
    if (!served_combine(victim.fault, victim.rank, rank, ranks)) {
      missing.combine.insert(victim.rank);
    }
  }
  return missing;
}

void expect_missing(Findings& findings, const char* operation, const RankSet& expected,
                    const RankSet& seen) {
  if (expected == seen) return;
  findings.add(fmt::format("{}: report.missing: expected {}, seen {}", operation, text_of(expected),
                           text_of(seen)));
}

// A frozen rank may be given up although it had served this one, if this one was late; nobody else
// may be, and nobody may be taken for heard who was not.
void expect_missing_or_late(Findings& findings, const char* operation, const RankSet& expected,
                            const RankSet& allowed, const RankSet& seen) {
  if (seen != expected && seen != allowed) expect_missing(findings, operation, expected, seen);
}

CommunicatorOptions adapted(CommunicatorOptions options) {
  support::place().adapt(options);
  return options;
}

/// One rank of a scene, joined.
class Rank {
 public:
  Rank(const Scene& scene, World& world, Findings& findings)
      : scene_(scene), world_(world), findings_(findings) {}

  bool create() {
    Result<Communicator> made =
        Communicator::create(world_, shape_of(scene_.terms), adapted(options_of(scene_.terms)));
    if (!made) {
      findings_.add("Communicator::create: " + made.status().to_string());
      return false;
    }
    communicator_.emplace(std::move(made).value());
    member_.emplace(scene_.terms, *communicator_, findings_);
    return true;
  }

  RoundResult round(int number, const RoundOptions& options = {}) {
    findings_.set_context(fmt::format("round {}: ", number));
    return member_->run(make_round(scene_.terms, number), options);
  }

  void good_rounds() {
    for (int number = 0; number < scene_.rounds_before; ++number) {
      const RoundResult result = round(number);
      expect_missing(findings_, "dispatch", {}, result.dispatch_missing);
      expect_missing(findings_, "combine", {}, result.combine_missing);
    }
    // So that the deadlines of the round of the fault begin at about the same time.
    if (const Status met = world_.barrier(); !met.ok()) findings_.add(met.to_string());
  }

  void rounds_without(const RankSet& gone, int first, int count) {
    for (int number = first; number < first + count; ++number) {
      const RoundResult result = round(number);
      expect_missing(findings_, "dispatch", gone, result.dispatch_missing);
      expect_missing(findings_, "combine", gone, result.combine_missing);
      if (result.longest_half > kLongBefore) findings_.add("a half waited for a rank given up");
    }
  }

 private:
  const Scene& scene_;
  World& world_;
  Findings& findings_;
  std::optional<Communicator> communicator_;
  std::optional<Member> member_;
};

RoundOptions armed_round(const Fault& fault, int signal) {
  RoundOptions options;
  options.check = false;
  options.on_stage = [fault, signal](Stage stage) {
    if (stage == fault.stage) arm(fault, signal);
  };
  return options;
}

void killed_body(const Scene& scene, World& world, Findings& findings) {
  Rank rank(scene, world, findings);
  if (!rank.create()) return;
  rank.good_rounds();
  const int fault_round = scene.rounds_before;
  if (const Victim* victim = victim_of(scene, world.rank())) {
    rank.round(fault_round, armed_round(victim->fault, SIGKILL));
    findings.add("the fault did not strike");
    return;
  }
  const Missing expected = missing_in_round(scene, world.rank());
  const RoundResult result = rank.round(fault_round);
  expect_missing(findings, "dispatch", expected.dispatch, result.dispatch_missing);
  expect_missing(findings, "combine", expected.combine, result.combine_missing);
  if (result.longest_half > kLongBefore) {
    findings.add(fmt::format("a half took {} ms although the peer's death was there to be seen",
                             result.longest_half / milliseconds(1)));
  }
  rank.rounds_without(all_victims(scene), fault_round + 1, scene.rounds_after);
}

pid_t process_of(World& world, int rank, Findings& findings) {
  const Result<std::vector<std::string>> all = world.all_gather(std::to_string(::getpid()));
  if (!all) {
    findings.add("all_gather: " + all.status().to_string());
    return 0;
  }
  const std::string& text = (*all)[static_cast<std::size_t>(rank)];
  pid_t process = 0;
  std::from_chars(text.data(), text.data() + text.size(), process);
  return process;
}

// The frozen rank itself: what it gets is not promised, but every call returns, with a Status and a
// report, and in the end it knows that it is alone.
void frozen_body(const Scene& scene, Rank& rank, const Victim& victim, Findings& findings) {
  RoundOptions options = armed_round(victim.fault, SIGSTOP);
  RoundResult result;
  for (int i = 0; i < scene.rounds_after; ++i) {
    options.dispatch_deadline = options.combine_deadline = kDispatchDeadline;
    result = rank.round(scene.rounds_before + i, options);
    options.on_stage = {};
  }
  RankSet others;
  for (int other = 0; other < scene.terms.ranks; ++other) {
    if (other != victim.rank) others.insert(other);
  }
  expect_missing(findings, "the thawed rank's last combine", others, result.combine_missing);
}

void frozen_bystander(const Scene& scene, World& world, Rank& rank, pid_t frozen,
                      Findings& findings) {
  const int ranks = scene.terms.ranks;
  const int victim = scene.victims.front().rank;
  const RankSet gone = all_victims(scene);
  const Missing expected = missing_in_round(scene, world.rank());
  RoundOptions options;
  options.dispatch_deadline = kDispatchDeadline;
  options.combine_deadline = kCombineDeadline;
  RoundResult result = rank.round(scene.rounds_before, options);
  expect_missing_or_late(findings, "dispatch", expected.dispatch, gone, result.dispatch_missing);
  expect_missing_or_late(findings, "combine", expected.combine, gone, result.combine_missing);

  options.dispatch_deadline = options.combine_deadline = kNextDeadline;
  result = rank.round(scene.rounds_before + 1, options);
  expect_missing(findings, "dispatch", gone, result.dispatch_missing);
  expect_missing(findings, "combine", gone, result.combine_missing);

  // From here on a wait for the frozen rank would last 20 s.
  constexpr int kWhileFrozen = 3;
  rank.rounds_without(gone, scene.rounds_before + 2, kWhileFrozen);
  // Any peer may thaw it: the others are at most one operation behind.
  if (world.rank() == (victim + 1) % ranks) ::kill(frozen, SIGCONT);
  rank.rounds_without(gone, scene.rounds_before + 2 + kWhileFrozen, scene.rounds_after);
}

support::RunOptions run_options() {
  support::RunOptions options;
  options.watchdog = seconds(60);
  options.leave = false;
  return options;
}

}  // namespace

support::RunResult run_killed(const Scene& scene) {
  const auto body = [&](World& world, Findings& findings) { killed_body(scene, world, findings); };
  return support::run_as_processes(scene.terms.ranks, in_its_place(body), run_options());
}

support::RunResult run_frozen(const Scene& scene) {
  const Victim victim = scene.victims.front();
  const auto body = [&](World& world, Findings& findings) {
    const pid_t frozen = process_of(world, victim.rank, findings);
    Rank rank(scene, world, findings);
    if (frozen == 0 || !rank.create()) return;
    rank.good_rounds();
    if (world.rank() == victim.rank) {
      frozen_body(scene, rank, victim, findings);
    } else {
      frozen_bystander(scene, world, rank, frozen, findings);
    }
  };
  return support::run_as_processes(scene.terms.ranks, in_its_place(body), run_options());
}

std::vector<std::string> unexpected(const support::RunResult& result, const Scene& scene) {
  std::vector<std::string> rest = result.failures;
  for (const Victim& victim : scene.victims) {
    const std::string meant = fmt::format("rank {}: ended by signal {}", victim.rank, SIGKILL);
    const auto found = std::find(rest.begin(), rest.end(), meant);
    if (found == rest.end()) {
      rest.push_back(fmt::format("rank {} was not killed", victim.rank));
    } else {
      rest.erase(found);
    }
  }
  return rest;
}

std::string lines(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

}  // namespace sluice::faults
