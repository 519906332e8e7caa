// SPDX-License-Identifier: MIT
#include "base/descriptor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "support/sanitizers.hpp"

namespace sluice::base {
namespace {

/// Two ends of one connection.
struct Pair {
  Descriptor own;
  Descriptor other;
};

Pair pair_of(bool of_this_process) {
  std::array<int, 2> ends{-1, -1};
  const auto make = [&] {
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data());
    return ends[0];
  };
  Pair pair;
  pair.own = of_this_process ? Descriptor::of_this_process(make) : Descriptor(make());
  pair.other = Descriptor(ends[1]);
  return pair;
}

bool ends(const Descriptor& other, int within_ms) {
  pollfd entry{other.number(), POLLIN, 0};
  return ::poll(&entry, 1, within_ms) == 1;
}

/// What a forked child exits with.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child < 0) return 2000 + errno;
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// A child that does nothing for as long as this lives.
class IdleChild {
 public:
  IdleChild() : number_(::fork()) {
    if (number_ != 0) return;
    ::alarm(60);
    for (;;) ::pause();
  }
  bool lives() const { return number_ > 0; }
  ~IdleChild() {
    if (!lives()) return;
    ::kill(number_, SIGKILL);
    ::waitpid(number_, nullptr, 0);
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;

 private:
  const pid_t number_;
};

TEST(Descriptor, OfThisProcessEndsWithItWhateverItsChildrenDo) {
  Pair kept = pair_of(true);
  Pair inherited = pair_of(false);
  Descriptor moved = std::move(kept.own);
  Descriptor assigned;
  assigned = std::move(moved);
  const IdleChild child;
  ASSERT_TRUE(child.lives());
  // As the system does it for a process that is killed.
  assigned.reset();
  inherited.own.reset();
  EXPECT_TRUE(ends(kept.other, 60000));
  EXPECT_FALSE(ends(inherited.other, 20)) << "so the child keeps what is not";
}

TEST(Descriptor, OfThisProcessKeepsItsNumberInAChild) {
  Pair kept = pair_of(true);
  const int number = kept.own.number();
  EXPECT_EQ(in_child([&] {
              // Nothing else is found under it, and the other end hears nothing.
              if (::send(number, "x", 1, MSG_NOSIGNAL) != -1 || errno != ENOTSOCK) return 1;
              if ((::fcntl(number, F_GETFD) & FD_CLOEXEC) == 0) return 2;
              Descriptor next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              if (next.number() == number) return 3;
              kept.own.reset();
              if (::fcntl(number, F_GETFD) != -1 || errno != EBADF) return 4;
              return ::fcntl(next.number(), F_GETFD) >= 0 ? 0 : 5;
            }),
            0);
  ASSERT_EQ(::send(number, "x", 1, MSG_NOSIGNAL), 1);
  char word = 0;
  EXPECT_EQ(::recv(kept.other.number(), &word, 1, 0), 1);
}

TEST(Descriptor, ANumberThatIsSomebodyElsesByNowIsTheChildsToo) {
  Pair kept = pair_of(true);
  const int number = kept.own.number();
  kept.own.reset();
  Pair others = pair_of(false);  // Somebody's who takes the number that has become free.
  ASSERT_EQ(others.own.number(), number);
  EXPECT_EQ(in_child([&] { return ::send(number, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : 1; }), 0);
  EXPECT_TRUE(ends(others.other, 0));
}

TEST(Descriptor, AChildOfAChildHasNoneEither) {
  const Pair kept = pair_of(true);
  const auto send = [&] { return ::send(kept.own.number(), "x", 1, MSG_NOSIGNAL) == -1 ? 0 : 1; };
  EXPECT_EQ(in_child([&] { return in_child(send); }), 0);
}

TEST(Descriptor, OneThatCannotBeMadeIsNone) {
  const Descriptor none = Descriptor::of_this_process([] { return ::open("/nowhere", O_RDONLY); });
  EXPECT_FALSE(none.open());
  EXPECT_EQ(errno, ENOENT);
}

bool is_datagram_socket(int number) {
  int type = 0;
  socklen_t length = sizeof(type);
  return ::getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM;
}

bool is_no_file(int number) {
  struct stat found {};
  return ::fstat(number, &found) == 0 && !S_ISCHR(found.st_mode);
}

// Other threads make and close them, and files that children shall have under the same numbers, while processes are forked.
TEST(Descriptor, WhateverIsUnderWayWhenAProcessIsForked) {
  if (testing::kThreadSanitizer) {
    GTEST_SKIP() << "the thread sanitizer's own locks do not survive a fork beside threads";
  }
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, 3> files{-1, -1, -1};  // That are open, as a child finds them.
  std::vector<std::thread> threads;
  for (std::atomic<int>& open : files) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        Descriptor own = Descriptor::of_this_process(
            [] { return ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
        own.reset();
        const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        open.store(file.number());
        for (int pause = 0; pause < 5000; ++pause) static_cast<void>(open.load());
        open.store(-1);
      }
    });
  }
  for (int round = 0; round < 300; ++round) {
    const int found = in_child([&] {
      for (int number = 3; number < 100; ++number) {
        if (is_datagram_socket(number)) return 1;
      }
      for (const std::atomic<int>& open : files) {
        // The system copies descriptors before memory: one that was opened in between is not there.
        const int number = open.load();
        if (number >= 0 && is_no_file(number)) return 2;
      }
      return 0;
    });
    EXPECT_EQ(found, 0) << "round " << round
                        << ": 1: a socket of its parent, 2: no file of its own";
    if (found != 0) break;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sluice::base
