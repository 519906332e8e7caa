// SPDX-License-Identifier: MIT
#include "base/background_thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <csignal>
#include <string>

namespace sluice::base {
namespace {

TEST(BackgroundThread, TakesNoSignalsButThoseOfItsOwnFaults) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  sigset_t seen;
  sigemptyset(&seen);
  start_background_thread("test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &seen); }).join();
  for (const int sent : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF, SIGPIPE}) {
    EXPECT_EQ(sigismember(&seen, sent), 1) << sent;
  }
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    EXPECT_EQ(sigismember(&seen, fault), 0) << fault;
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int number = 1; number <= SIGRTMAX; ++number) {
    EXPECT_EQ(sigismember(&after, number), sigismember(&before, number)) << number;
  }
}

TEST(BackgroundThread, HasAName) {
  std::array<char, 16> name{};
  start_background_thread("sluice-monitor", [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }).join();
  EXPECT_EQ(std::string(name.data()), "sluice-monitor");
}

}  // namespace
}  // namespace sluice::base
