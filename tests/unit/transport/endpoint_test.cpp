// SPDX-License-Identifier: MIT
//
// What every endpoint must do, in memory and on the providers that run on any machine.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/sanitizers.hpp"
#include "transport/libfabric.hpp"
#include "unit/transport/endpoints.hpp"
#include "unit/transport/talker.hpp"

namespace sluice::transport {
namespace {

using std::chrono::seconds;

class Endpoints : public ::testing::TestWithParam<Kind> {
 protected:
  void join(int ranks, std::size_t bytes, int window = 64) {
    if (testing::kThreadSanitizer && GetParam().provider != "memory") {
      GTEST_SKIP() << "the thread sanitizer sees races in libfabric, which is not instrumented";
    }
    std::string why_not;
    joined_ = transport::join(GetParam(), ranks, bytes, window, 7, why_not);
    if (!joined_) GTEST_SKIP() << why_not;
  }
  Endpoint& at(int rank) { return *joined_->endpoints[static_cast<std::size_t>(rank)]; }

  /// All ranks talk to each other, each in a thread of its own.
  void talk(int ranks, int messages) {
    std::atomic<int> ready{0};
    std::vector<std::int64_t> wrong(static_cast<std::size_t>(ranks), -1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto& memory = joined_->memory[static_cast<std::size_t>(rank)];
        Talker talker(at(rank), memory, rank, ranks, messages, Scheme::per_message, /*idles=*/true);
        if (talker.run(base::Deadline::after(seconds(60)))) {
          wrong[static_cast<std::size_t>(rank)] = talker.wrong();
        }
        ++ready;
        // Its peers' last chunks move while it polls.
        const auto deadline = base::Deadline::after(seconds(60));
        while (ready < ranks && !deadline.expired()) {
          talker.keep_polling();
          std::this_thread::yield();
        }
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          EXPECT_EQ(at(rank).bytes_put(peer), talker.bytes_sent(peer));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::int64_t count : wrong) EXPECT_EQ(count, 0);
  }

  std::unique_ptr<Joined> joined_;
};

TEST_P(Endpoints, BringEveryMessageWhole) {
  join(3, Talker::memory_bytes(3));
  if (!joined_) return;
  talk(3, 60);
}

TEST_P(Endpoints, KeepTheWindowWhenItIsSmall) {
  join(2, Talker::memory_bytes(2), 4);
  if (!joined_) return;
  talk(2, 40);
}

TEST_P(Endpoints, PutNoMoreThanTheWindowUntilItIsTaken) {
  join(2, 4096, 8);
  if (!joined_) return;
  std::array<Event, 16> events;
  int posted = 0;
  int arrived = 0;
  const auto post_for = [&](seconds time) {
    const auto deadline = base::Deadline::after(time);
    while (!deadline.expired() && posted < 20) {
      Chunk chunk;
      chunk.peer = 1;
      chunk.from = chunk.to = 0;
      chunk.bytes = 64;
      if (at(0).put(chunk) == Posted::yes) ++posted;
      at(0).poll(events);
      const std::size_t count = at(1).poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        if (events[i].kind == Event::Kind::arrived) ++arrived;
      }
    }
  };
  post_for(seconds(1));
  EXPECT_EQ(posted, 8);
  EXPECT_EQ(arrived, 8);
  at(1).took(0, 5);
  post_for(seconds(1));
  EXPECT_EQ(posted, 13);
  EXPECT_EQ(arrived, 13);
}

TEST_P(Endpoints, PutNothingToWhomTheyAbandoned) {
  join(3, 4096);
  if (!joined_) return;
  at(0).abandon(1);
  Chunk chunk;
  chunk.from = chunk.to = 0;
  chunk.bytes = 8;
  chunk.peer = 1;
  EXPECT_EQ(at(0).put(chunk), Posted::gone);
  EXPECT_EQ(at(0).bytes_put(1), 0U);
  chunk.peer = 2;
  const auto deadline = base::Deadline::after(seconds(30));
  std::array<Event, 4> events;
  Posted posted = Posted::busy;
  bool arrived = false;
  while (!arrived && !deadline.expired()) {
    if (posted == Posted::busy) posted = at(0).put(chunk);
    at(0).poll(events);
    arrived = at(2).poll(events) > 0;
  }
  EXPECT_EQ(posted, Posted::yes);
  EXPECT_TRUE(arrived);
}

TEST_P(Endpoints, AreWokenByOtherThreads) {
  join(2, 64);
  if (!joined_) return;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    at(0).wake();
  });
  // Whatever idle() takes for too long, it ends: this waits for the wake at the latest.
  const auto deadline = base::Deadline::after(seconds(30));
  at(0).idle(seconds(30));
  EXPECT_FALSE(deadline.expired());
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Transport, Endpoints, ::testing::ValuesIn(all_kinds()),
                         [](const auto& test) { return test.param.name; });

TEST(Libfabric, RefusesPeersOfAnotherMode) {
  std::string why_not;
  const auto one = join({"", "net", SignalMode::immediate}, 2, 64, 16, 1, why_not);
  const auto two = join({"", "net", SignalMode::serial}, 2, 64, 16, 1, why_not);
  if (!one || !two) GTEST_SKIP() << why_not;
  const Status status = one->endpoints[0]->connect(1, *two->endpoints[1]->introduction());
  EXPECT_EQ(status.code(), StatusCode::mismatch);
  EXPECT_NE(status.message().find("signals 'immediate'"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("signals 'serial'"), std::string::npos) << status.message();
}

TEST(Libfabric, RefusesAnIntroductionThatIsCutShort) {
  std::string why_not;
  const auto joined = join({"", "net", SignalMode::immediate}, 2, 64, 16, 1, why_not);
  if (!joined) GTEST_SKIP() << why_not;
  const std::string whole = *joined->endpoints[1]->introduction();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Status status = joined->endpoints[0]->connect(1, whole.substr(0, bytes));
    EXPECT_EQ(status.code(), StatusCode::mismatch) << bytes;
  }
  EXPECT_EQ(joined->endpoints[0]->connect(1, whole + "x").code(), StatusCode::mismatch);
}

TEST(Libfabric, SaysWhichProvidersItLacks) {
  LibfabricSettings settings;
  settings.providers = {"no-such-provider", "nor-this"};
  const auto endpoint = open_libfabric(0, 2, settings);
  ASSERT_FALSE(endpoint.ok());
  if (endpoint.status().code() == StatusCode::unimplemented) GTEST_SKIP() << "built without";
  EXPECT_EQ(endpoint.status().code(), StatusCode::unavailable);
  EXPECT_NE(endpoint.status().message().find("no-such-provider, nor-this"), std::string::npos)
      << endpoint.status().message();
}

TEST(Libfabric, RefusesRailsAndWindowsThatCannotBe) {
  LibfabricSettings settings;
  settings.rails = 0;
  const auto none = open_libfabric(0, 2, settings);
  if (none.status().code() == StatusCode::unimplemented) GTEST_SKIP() << "built without";
  EXPECT_EQ(none.status().code(), StatusCode::invalid_argument);
  settings.rails = 1;
  settings.window = 3;
  EXPECT_EQ(open_libfabric(0, 2, settings).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace sluice::transport
