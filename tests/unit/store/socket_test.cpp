// SPDX-License-Identifier: MIT
#include "store/socket.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "unit/store/soon.hpp"

namespace sluice::store {
namespace {

using base::Deadline;
using base::Descriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

/// How many descriptors the process may have, for as long as this lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = most;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// The system refuses to poll more at a time than a process may have open, and some, as sandboxes do, lower that
// while they run.
TEST(PollUntil, GoesOnWhereTheLimitIsLoweredBelowItsEntries) {
  constexpr std::size_t kEntries = 20;
  std::vector<Descriptor> files;
  std::vector<pollfd> entries;
  for (std::size_t i = 0; i < kEntries; ++i) {
    files.emplace_back(::eventfd(0, EFD_CLOEXEC));
    ASSERT_TRUE(files.back().open());
    entries.push_back({files.back().number(), POLLIN, 0});
  }
  entries.push_back({-1, POLLIN, 0});  // Skipped.
  const DescriptorLimit limit(7);
  EXPECT_EQ(poll_until(entries, Deadline::after(milliseconds(30))), 0);
  for (const std::size_t ready : {std::size_t{0}, std::size_t{13}, kEntries - 1}) {
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(files[ready].number(), &one, sizeof(one)), ssize_t{sizeof(one)});
    EXPECT_EQ(poll_until(entries, soon()), 1);
    for (std::size_t i = 0; i < kEntries; ++i) {
      EXPECT_EQ(entries[i].revents, i == ready ? POLLIN : 0) << i;
    }
    std::uint64_t word = 0;
    ASSERT_EQ(::read(files[ready].number(), &word, sizeof(word)), ssize_t{sizeof(word)});
  }
}

// As behind a filter, or to one of several addresses that leads nowhere: here to who takes no more connections.
TEST(ConnectTo, AnAttemptThatNothingAnswersEndsByItself) {
  const Descriptor full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::listen(full.number(), 0), 0);  // At any address, and a port of the system's choosing.
  const auto bound = local_address(full);
  ASSERT_TRUE(bound.ok()) << bound.status().to_string();
  Address address = *bound;
  address.host = "127.0.0.1";
  std::vector<Descriptor> waiting;
  for (int calls = 0; calls < 8; ++calls) {
    const auto start = steady_clock::now();
    auto socket = connect_to(address, Deadline::after(seconds(60)));
    if (socket.ok()) {
      waiting.push_back(std::move(socket).value());
      continue;
    }
    EXPECT_EQ(socket.status().code(), StatusCode::unavailable) << socket.status().to_string();
    EXPECT_LT(steady_clock::now() - start, seconds(30));
    return;
  }
  FAIL() << "a queue of none took eight";
}

}  // namespace
}  // namespace sluice::store
