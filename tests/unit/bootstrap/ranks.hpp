// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/world.hpp"
#include "support/alone.hpp"
#include "support/sanitizers.hpp"

namespace sluice::testing {

/// For ranks that wait for others on however busy a machine.
inline const WorldOptions kPatient{std::chrono::seconds(60)};

/// Runs body(rank) on a thread of its own for every rank, and waits for all of them.
inline void for_each_rank(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

/// A rendezvous that no other test, and no other run of this test, uses.
inline std::string new_rendezvous() {
  static std::atomic<int> count{0};
  return "unix:sluice-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

/// Ranks as forked processes. A rank is a function that returns its exit code; it must not use the
/// test framework. Whoever still runs when this object goes is killed, stopped ones included.
class ForkedRanks {
 public:
  /// The process that forks them.
  enum class Of : std::uint8_t { one_thread, a_rank_in_a_world };

  ForkedRanks(int size, const std::function<int(int)>& body, Of process = Of::one_thread) {
    if (process == Of::one_thread) support::wait_until_alone();
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(120);  // The second watchdog, should the first one be killed.
        ::_exit(body(rank));
      }
      children_.push_back(child);
    }
  }
  ~ForkedRanks() {
    for (const pid_t child : children_) {
      if (child <= 0) continue;
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  void signal(int rank, int number) { ::kill(children_[static_cast<std::size_t>(rank)], number); }

  /// The exit code of a rank; -1 if it still runs after `limit`, 1000 + n if signal n ended it.
  int exit_code(int rank, std::chrono::seconds limit = std::chrono::seconds(60)) {
    pid_t& child = children_[static_cast<std::size_t>(rank)];
    const auto end = std::chrono::steady_clock::now() + limit;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    child = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  std::vector<pid_t> children_;
};

/// The thread sanitizer's runtime does not support threads in a forked child.
#define SLUICE_SKIP_FORK_UNDER_TSAN()      \
  if (::sluice::testing::kThreadSanitizer) \
  GTEST_SKIP() << "forked ranks start threads, which the thread sanitizer does not support"

}  // namespace sluice::testing
