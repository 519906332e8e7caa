// SPDX-License-Identifier: MIT
#include "faults/strike.hpp"

#include <fmt/core.h>
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

}  // namespace sluice::faults
