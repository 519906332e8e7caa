// SPDX-License-Identifier: MIT
//
// What every endpoint must do, in memory and on the providers that run on any machine.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "support/sanitizers.hpp"
#include "transport/libfabric.hpp"
#include "unit/transport/endpoints.hpp"

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

  void expect_whole(int messages) {
    for (const std::int64_t wrong : talk(*joined_, messages)) EXPECT_EQ(wrong, 0);
  }

  std::unique_ptr<Joined> joined_;
};

TEST_P(Endpoints, BringEveryMessageWhole) {
  join(3, Talker::memory_bytes(3));
  if (!joined_) return;
  expect_whole(60);
}

TEST_P(Endpoints, KeepTheWindowWhenItIsSmall) {
  join(2, Talker::memory_bytes(2), 4);
  if (!joined_) return;
  expect_whole(40);
}

// Of as many pieces as an endpoint takes, short and long ones: all are there when the immediate is.
TEST_P(Endpoints, BringAllPiecesOfAChunkBeforeItsImmediate) {
  constexpr std::size_t kPart = 400'000;
  constexpr std::uint32_t kRounds = 40;
  join(2, 4 * kPart);
  if (!joined_) return;
  const std::size_t most = at(0).traits().pieces_max;
  ASSERT_LE(most, 4U);
  // Of a connection, on which one thing follows the other.
  const bool several = at(0).traits().provider == "net" || at(0).traits().provider == "tcp";
  if (several && GetParam().signals == SignalMode::immediate) {
    EXPECT_GT(most, 1U);
  }
  std::vector<std::byte>& from = joined_->memory[0];
  std::vector<std::byte>& to = joined_->memory[1];
  // Every round sends another part of this.
  std::vector<std::byte> pattern(from.size() + kRounds);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 7);
  std::array<Event, 16> events;
  std::uint64_t bytes = 0;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::memcpy(from.data(), pattern.data() + round, from.size());
    const std::size_t count = 1 + round % most;
    // Each into another part than it comes from.
    std::array<Piece, 4> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t length = (round / most + i) % 2 == 0 ? 1 + 100 * round : kPart - round;
      pieces[i] = {0, i * kPart, 0, (3 - i) * kPart, length};
      bytes += length;
    }
    Chunk chunk;
    chunk.peer = 1;
    chunk.from = chunk.to = 0;
    chunk.from_offset = pieces[0].from_offset;
    chunk.to_offset = pieces[0].to_offset;
    chunk.bytes = pieces[0].bytes;
    chunk.immediate = round;
    chunk.context = round;
    chunk.with = std::span<const Piece>(pieces).subspan(1, count - 1);
    const auto deadline = base::Deadline::after(seconds(60));
    bool put = false;
    bool sent = false;
    bool arrived = false;
    while (!(sent && arrived) && !deadline.expired()) {
      put = put || at(0).put(chunk) == Posted::yes;
      std::size_t found = at(0).poll(events);
      for (std::size_t i = 0; i < found; ++i) sent |= events[i].kind == Event::Kind::sent;
      found = at(1).poll(events);
      for (std::size_t i = 0; i < found; ++i) {
        ASSERT_EQ(events[i].kind, Event::Kind::arrived);
        ASSERT_EQ(events[i].immediate, round);
        arrived = true;
        for (std::size_t k = 0; k < count; ++k) {
          EXPECT_EQ(std::memcmp(from.data() + pieces[k].from_offset,
                                to.data() + pieces[k].to_offset, pieces[k].bytes),
                    0)
              << "piece " << k << " of " << count << ", round " << round;
        }
        at(1).took(0, 1);
      }
    }
    ASSERT_TRUE(sent && arrived) << round;
  }
  EXPECT_EQ(at(0).bytes_put(1), bytes);
}

// As a rank does that says goodbye: it polls until that is out, and never again.
TEST_P(Endpoints, BringWhatIsOutThoughItsSenderPollsNoMore) {
  join(2, 4096);
  if (!joined_) return;
  std::array<Event, 16> events;
  std::uint32_t arrived = 0;
  const auto look = [&] {
    const std::size_t count = at(1).poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind != Event::Kind::arrived) continue;
      ++arrived;
      at(1).took(0, 1);
    }
  };
  std::uint32_t sent = 0;
  for (const std::uint32_t bytes : {0U, 64U, 0U, 4096U, 1U}) {
    Chunk chunk;
    chunk.peer = 1;
    chunk.from = chunk.to = 0;
    chunk.bytes = bytes;
    chunk.immediate = ++sent;
    const auto deadline = base::Deadline::after(seconds(60));
    while (at(0).put(chunk) == Posted::busy && !deadline.expired()) {
      at(0).poll(events);
      look();
    }
    const std::optional<std::uint64_t> mark = at(0).mark(1);
    ASSERT_TRUE(mark.has_value());
    while (!at(0).is_out(1, *mark) && !deadline.expired()) {
      at(0).poll(events);
      look();
    }
    while (arrived < sent && !deadline.expired()) look();
    ASSERT_EQ(arrived, sent) << bytes << " B";
  }
}

TEST_P(Endpoints, PutNoMoreThanTheWindowUntilItIsTaken) {
  join(2, 4096, 8);
  if (!joined_) return;
  std::array<Event, 16> events;
  int posted = 0;
  int arrived = 0;
  const auto step = [&] {
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
  };
  // So many, and for a while no more.
  const auto expect_chunks = [&](int chunks) {
    const auto deadline = base::Deadline::after(seconds(60));
    while (arrived < chunks && !deadline.expired()) step();
    const auto quiet = base::Deadline::after(std::chrono::milliseconds(20));
    while (!quiet.expired()) step();
    EXPECT_EQ(posted, chunks);
    EXPECT_EQ(arrived, chunks);
  };
  expect_chunks(8);
  at(1).took(0, 5);
  expect_chunks(13);
  at(1).took(0, 8);
  expect_chunks(21);
}

TEST_P(Endpoints, TellRegionsApart) {
  join(2, 64);
  if (!joined_) return;
  std::array<std::vector<std::byte>, 2> second{std::vector<std::byte>(64),
                                               std::vector<std::byte>(64)};
  std::array<std::string, 2> introductions;
  for (int rank = 0; rank < 2; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    const auto region = at(rank).add_region(second[i].data(), second[i].size());
    ASSERT_TRUE(region.ok());
    EXPECT_EQ(*region, 1);
    introductions[i] = *at(rank).introduction();
  }
  ASSERT_TRUE(at(0).connect(1, introductions[1]).ok());
  ASSERT_TRUE(at(1).connect(0, introductions[0]).ok());
  joined_->memory[0][8] = std::byte{1};
  second[0][8] = std::byte{2};
  int sent = 0;
  int arrived = 0;
  std::array<Event, 4> events;
  const auto deadline = base::Deadline::after(seconds(60));
  while (arrived < 2 && !deadline.expired()) {
    Chunk chunk;  // Region 0 to region 1, and the other way round.
    chunk.peer = 1;
    chunk.from = sent;
    chunk.to = 1 - sent;
    chunk.from_offset = 8;
    chunk.to_offset = 16;
    chunk.bytes = 1;
    if (sent < 2 && at(0).put(chunk) == Posted::yes) ++sent;
    at(0).poll(events);
    const std::size_t count = at(1).poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind == Event::Kind::arrived) ++arrived;
    }
  }
  EXPECT_EQ(second[1][16], std::byte{1});
  EXPECT_EQ(joined_->memory[1][16], std::byte{2});
}

// One is gone while chunks are on their way to it. Whether its peers are told is up to the provider.
TEST_P(Endpoints, GoOnWithoutOneThatIsGone) {
  join(3, 4096, 16);
  if (!joined_) return;
  std::array<Event, 8> events;
  std::array<int, 3> arrived{};
  const auto take = [&](int rank) {
    const std::size_t count = at(rank).poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind != Event::Kind::arrived) continue;
      ++arrived[static_cast<std::size_t>(rank)];
      at(rank).took(static_cast<int>(events[i].immediate), 1);
    }
    return count;
  };
  const auto put = [&](int from, int to) {
    Chunk chunk;
    chunk.peer = to;
    chunk.from = chunk.to = 0;
    chunk.bytes = 1024;
    chunk.immediate = static_cast<std::uint32_t>(from);
    return at(from).put(chunk);
  };
  // All know each other.
  auto deadline = base::Deadline::after(seconds(60));
  std::array<int, 3> started{};
  while ((arrived[1] < 4 || arrived[2] < 4) && !deadline.expired()) {
    for (const int to : {1, 2}) {
      int& count = started[static_cast<std::size_t>(to)];
      if (count < 4 && put(0, to) == Posted::yes) ++count;
    }
    for (const int rank : {0, 1, 2}) take(rank);
  }
  ASSERT_EQ(arrived[1], 4);
  for (int i = 0; i < 12; ++i) put(0, 1);
  joined_->endpoints[1].reset();
  const int before = arrived[2];
  deadline = base::Deadline::after(seconds(60));
  int sent = 0;
  while (arrived[2] < before + 200 && !deadline.expired()) {
    put(0, 1);
    if (sent < 200 && put(0, 2) == Posted::yes) ++sent;
    take(0);
    take(2);
  }
  EXPECT_EQ(arrived[2], before + 200);
  at(0).abandon(1);
  EXPECT_EQ(put(0, 1), Posted::gone);
  // What is on its way to the one that is gone is dropped with the endpoint.
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

// What the thread that receives uses from then on.
TEST_P(Endpoints, TakeNoMemoryOnceTheyHaveBegun) {
  join(2, 64);
  if (!joined_) return;
  if (GetParam().provider == "memory") return;
  std::array<Event, 1> events;
  at(0).poll(events);
  std::array<std::byte, 64> more{};
  EXPECT_EQ(at(0).add_region(more.data(), more.size()).status().code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(at(0).introduction().status().code(), StatusCode::failed_precondition);
}

int threads_of_this_process() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

TEST(LibfabricEndpoint, ReceivesApartWhereThereAreProcessorsForIt) {
  if (testing::kThreadSanitizer) {
    GTEST_SKIP() << "the thread sanitizer sees races in libfabric, which is not instrumented";
  }
  struct Row {
    std::optional<bool> receiver;
    int processors;
    bool apart;
  };
  for (const Row& row : {Row{{}, 0, false}, Row{{}, 2, false}, Row{{}, 3, true}, Row{true, 0, true},
                         Row{false, 64, false}}) {
    LibfabricSettings settings;
    settings.providers = {"tcp", "net"};
    settings.address = "127.0.0.1";
    settings.receiver = row.receiver;
    settings.processors = row.processors;
    const auto endpoint = open_libfabric(0, 1, settings);
    if (!endpoint.ok()) GTEST_SKIP() << endpoint.status().to_string();
    std::array<Event, 1> events;
    const int before = threads_of_this_process();
    (*endpoint)->poll(events);
    EXPECT_EQ(threads_of_this_process() - before, row.apart ? 1 : 0) << row.processors;
  }
}

INSTANTIATE_TEST_SUITE_P(Transport, Endpoints, ::testing::ValuesIn(all_kinds()),
                         [](const auto& test) { return test.param.name; });

// All others skip what they cannot open; TCP is everywhere.
TEST(Libfabric, OpensTcpOnEveryMachine) {
  LibfabricSettings settings;
  settings.providers = {"tcp", "net"};
  settings.address = "127.0.0.1";
  const auto endpoint = open_libfabric(0, 2, settings);
  if (endpoint.status().code() == StatusCode::unimplemented)
    GTEST_SKIP() << "built without libfabric";
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  EXPECT_EQ((*endpoint)->traits().signals, SignalMode::immediate);
  EXPECT_EQ((*endpoint)->traits().rails, 1);
  EXPECT_GE((*endpoint)->traits().put_bytes_max, std::size_t{1} << 20);
}

TEST(Libfabric, TakesTheNetworkCardsThatAreNamed) {
  LibfabricSettings settings;
  settings.providers = {"tcp", "net"};
  settings.nics = {"lo"};
  settings.rails = 2;
  const auto endpoint = open_libfabric(0, 2, settings);
  if (endpoint.status().code() == StatusCode::unimplemented)
    GTEST_SKIP() << "built without libfabric";
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  using namespace std::string_literals;
  const Result<std::string> introduction = (*endpoint)->introduction();
  ASSERT_TRUE(introduction.ok());
  const std::string v4 = "\x7f\0\0\1"s;
  const std::string v6 = std::string(15, '\0') + "\1";
  EXPECT_TRUE(introduction->find(v4) != std::string::npos ||
              introduction->find(v6) != std::string::npos);
  settings.nics = {"lo", "no-such-card"};
  const auto none = open_libfabric(0, 2, settings);
  EXPECT_EQ(none.status().code(), StatusCode::unavailable);
  EXPECT_NE(none.status().message().find(
                "providers tcp, net with all of the network cards lo, no-such-card"),
            std::string::npos)
      << none.status().message();
}

TEST(Libfabric, RefusesPeersOfAnotherMode) {
  std::string why_not;
  const auto one = join({"", kAnyTcp, SignalMode::immediate}, 2, 64, 16, 1, why_not);
  const auto two = join({"", kAnyTcp, SignalMode::serial}, 2, 64, 16, 1, why_not);
  if (!one || !two) GTEST_SKIP() << why_not;
  const Status status = one->endpoints[0]->connect(1, *two->endpoints[1]->introduction());
  EXPECT_EQ(status.code(), StatusCode::mismatch);
  EXPECT_NE(status.message().find("signals 'immediate'"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("signals 'serial'"), std::string::npos) << status.message();
}

TEST(Libfabric, RefusesAnIntroductionThatIsCutShort) {
  std::string why_not;
  const auto joined = join({"", kAnyTcp, SignalMode::immediate}, 2, 64, 16, 1, why_not);
  if (!joined) GTEST_SKIP() << why_not;
  const std::string whole = *joined->endpoints[1]->introduction();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Status status = joined->endpoints[0]->connect(1, whole.substr(0, bytes));
    EXPECT_EQ(status.code(), StatusCode::mismatch) << bytes;
  }
  EXPECT_EQ(joined->endpoints[0]->connect(1, whole + "x").code(), StatusCode::mismatch);
}

Result<std::unique_ptr<Endpoint>> open_at(const char* address, std::size_t rank, int ranks,
                                          const char* loopback_network = "") {
  LibfabricSettings settings;
  settings.providers = {"tcp", "net"};
  settings.address = address;
  settings.loopback_network = loopback_network;
  return open_libfabric(static_cast<int>(rank), ranks, settings);
}

TEST(Libfabric, RefusesPeersOfAnotherAddressFamily) {
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const char* address : {"127.0.0.1", "::1"}) {
    auto endpoint = open_at(address, endpoints.size(), 2);
    if (!endpoint.ok()) GTEST_SKIP() << endpoint.status().to_string();
    endpoints.push_back(std::move(*endpoint));
  }
  const Status status = endpoints[0]->connect(1, *endpoints[1]->introduction());
  EXPECT_EQ(status.code(), StatusCode::mismatch) << status.to_string();
}

// It would lead to this rank's own machine, and perhaps to another rank there.
TEST(Libfabric, RefusesLoopbackAddressesOfOtherMachines) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (const char* loopback : {"this", "that", "this", ""}) {
      auto endpoint = open_at(address, endpoints.size(), 4, loopback);
      if (!endpoint.ok()) GTEST_SKIP() << endpoint.status().to_string();
      endpoints.push_back(std::move(*endpoint));
    }
    const Status status = endpoints[0]->connect(1, *endpoints[1]->introduction());
    EXPECT_EQ(status.code(), StatusCode::unavailable) << status.to_string();
    EXPECT_NE(status.message().find("SLUICE_NETWORK_ADDRESS"), std::string::npos)
        << status.message();
    EXPECT_TRUE(endpoints[0]->connect(2, *endpoints[2]->introduction()).ok());
    EXPECT_TRUE(endpoints[0]->connect(3, *endpoints[3]->introduction()).ok()) << "not known";
  }
}

TEST(Libfabric, SaysWhichProvidersItLacks) {
  LibfabricSettings settings;
  settings.providers = {"no-such-provider", "nor-this"};
  const auto endpoint = open_libfabric(0, 2, settings);
  ASSERT_FALSE(endpoint.ok());
  if (endpoint.status().code() == StatusCode::unimplemented)
    GTEST_SKIP() << "built without libfabric";
  EXPECT_EQ(endpoint.status().code(), StatusCode::unavailable);
  EXPECT_NE(endpoint.status().message().find("no-such-provider, nor-this"), std::string::npos)
      << endpoint.status().message();
}

TEST(Libfabric, RefusesRailsAndWindowsThatCannotBe) {
  LibfabricSettings settings;
  settings.rails = 0;
  const auto none = open_libfabric(0, 2, settings);
  if (none.status().code() == StatusCode::unimplemented) GTEST_SKIP() << "built without libfabric";
  EXPECT_EQ(none.status().code(), StatusCode::invalid_argument);
  settings.rails = 1;
  settings.window = 3;
  EXPECT_EQ(open_libfabric(0, 2, settings).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace sluice::transport
