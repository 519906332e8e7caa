// SPDX-License-Identifier: MIT
#include "faults/fault.hpp"

#include <signal.h>

#include <cstdio>
#include <cstdlib>

namespace sluice::faults {
namespace {

using base::TestPoint;

// Of this process; calls come from its one thread.
struct Armed {
  bool on = false;
  TestPoint point = TestPoint::before_tell;
  int passes = 0;
  int signal = 0;
} armed;

void strike(TestPoint point, int /*rank*/, int /*peer*/) {
  if (!armed.on || point != armed.point || armed.passes-- > 0) return;
  armed.on = false;  // A frozen rank goes on from here when it is thawed.
  ::raise(armed.signal);
}

int distance(int victim, int peer, int ranks) {
  return (peer - victim + ranks) % ranks;
}

// Of a half in which the fault strikes, whether the peer at `place` (1 is the first) was served.
bool served_within(const Fault& fault, int place) {
  if (!fault.inside) return false;
  if (fault.point == TestPoint::before_publish) return place <= fault.passes;
  if (fault.point == TestPoint::after_publish) return place <= fault.passes + 1;
  return false;
}

}  // namespace

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> faults = {
      {"IdleBeforeDispatch", Stage::dispatch_send},
      {"BeforeTell", Stage::dispatch_send, true, TestPoint::before_tell},
      {"BeforePayload", Stage::dispatch_send, true, TestPoint::before_payload},
      {"BeforeFirstPublish", Stage::dispatch_send, true, TestPoint::before_publish, 0},
      {"BeforeSecondPublish", Stage::dispatch_send, true, TestPoint::before_publish, 1},
      {"AfterSecondPublish", Stage::dispatch_send, true, TestPoint::after_publish, 1},
      {"BetweenTheDispatchHalves", Stage::dispatch_receive},
      {"BeforeReadingRows", Stage::dispatch_receive, true, TestPoint::before_read},
      {"BeforeDispatchDone", Stage::dispatch_receive, true, TestPoint::before_done},
      {"BetweenDispatchAndCombine", Stage::combine_send},
      {"CombineBeforePayload", Stage::combine_send, true, TestPoint::before_payload},
      {"CombineBeforeSecondPublish", Stage::combine_send, true, TestPoint::before_publish, 1},
      {"CombineAfterFirstPublish", Stage::combine_send, true, TestPoint::after_publish, 0},
      {"CombineBeforeAwait", Stage::combine_receive, true, TestPoint::before_await},
      {"CombineBeforeDone", Stage::combine_receive, true, TestPoint::before_done},
      {"IdleAfterTheRound", Stage::end},
  };
  return faults;
}

const Fault& fault_named(const std::string& name) {
  for (const Fault& fault : all_faults()) {
    if (name == fault.name) return fault;
  }
  std::fprintf(stderr, "no fault is named %s\n", name.c_str());
  std::abort();
}

void arm(const Fault& fault, int signal) {
  if (!fault.inside) {
    ::raise(signal);
    return;
  }
  armed = {true, fault.point, fault.passes, signal};
  base::test_point_hook.store(&strike);
}

bool served_dispatch(const Fault& fault, int victim, int peer, int ranks) {
  if (fault.stage != Stage::dispatch_send) return true;
  return served_within(fault, distance(victim, peer, ranks));
}

bool served_combine(const Fault& fault, int victim, int peer, int ranks) {
  if (fault.stage < Stage::combine_send) return false;
  if (fault.stage > Stage::combine_send) return true;
  return served_within(fault, distance(victim, peer, ranks));
}

}  // namespace sluice::faults
