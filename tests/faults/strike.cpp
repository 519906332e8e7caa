// SPDX-License-Identifier: MIT
#include "faults/strike.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>

#include "base/deadline.hpp"
#include "node_namespaces.hpp"

namespace sluice::faults {
namespace {

void set_link(const char* state, support::Findings& findings) {
  const std::string command = fmt::format("PATH=\"$PATH:/usr/sbin:/sbin\" ip link set {} {}",
                                          bench::NodeNamespaces::interface(), state);
  if (std::system(command.c_str()) != 0) findings.add(command);
}

}  // namespace

Time::Time() {
  void* const page =
      ::mmap(nullptr, sizeof(*at_ns_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  at_ns_ = new (page) std::atomic<std::int64_t>(0);
}

Time::~Time() {
  ::munmap(at_ns_, sizeof(*at_ns_));
}

void Time::is_now() const {
  at_ns_->store(base::now_ns());
}

double Time::seconds_until(std::int64_t then_ns) const {
  return static_cast<double>(then_ns - at_ns_->load()) * 1e-9;
}

void strike(What what, const Time& time, support::Findings& findings) {
  time.is_now();
  switch (what) {
    case What::killed: ::kill(::getpid(), SIGKILL); return;
    case What::frozen: ::kill(::getpid(), SIGSTOP); return;
    case What::cut_off: return set_link("down", findings);
  }
}

void reconnect(support::Findings& findings) {
  set_link("up", findings);
}

void check_named(What what, const Time& time, int awaited, std::int64_t named_ns,
                 support::Findings& findings) {
  if (named_ns == 0) return findings.add(fmt::format("no report names rank {}", awaited));
  const double seconds = time.seconds_until(named_ns);
  findings.set_note(fmt::format("{:.3f}", seconds));
  if (seconds > longest_seconds(what)) {
    findings.add(fmt::format("rank {} was named after {:.3f} s, expected {} at most", awaited,
                             seconds, longest_seconds(what)));
  }
}

bool expect_named(const support::RunResult& result, const char* name, int victim) {
  if (!result.failures.empty() && result.failures[0].find("no namespaces") != std::string::npos) {
    return false;
  }
  std::string times;
  for (const std::string& note : result.notes) times += note.empty() ? " -" : " " + note;
  fmt::print("{}: named by each rank after s:{}\n", name, times);
  const std::string meant = fmt::format("rank {}: ended by signal {}", victim, SIGKILL);
  for (const std::string& failure : result.failures) {
    if (!failure.starts_with(meant)) ADD_FAILURE() << failure;
  }
  return true;
}

}  // namespace sluice::faults
