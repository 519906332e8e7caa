// SPDX-License-Identifier: MIT
//
// Endpoints of libfabric over a wire that is as bad as one between machines: late, with losses, narrow,
// and with two rails of which one overtakes the other.
#include "support/wire.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "support/random.hpp"
#include "support/sanitizers.hpp"
#include "support/wired_network.hpp"
#include "unit/transport/endpoints.hpp"
#include "unit/transport/talker.hpp"

namespace sluice::transport {
namespace {

using std::chrono::seconds;
using support::Wire;

// As long as those of the relay: eight chunks of a row of 3584 numbers.
constexpr Load kLoad{4, 7168, 8, true};

struct Case {
  SignalMode signals;
  int rails;
  std::string weather;
  const char* provider = kAnyTcp;
  int window = 64;  // Chunks: all messages of a rank at once are half of it.
};

std::string name_of(const Case& which) {
  return fmt::format("{}{}_{}_{}{}", which.provider == kAnyTcp ? "" : "rxm_",
                     to_string(which.signals), which.rails == 1 ? "one_rail" : "two_rails",
                     which.weather, which.window < 64 ? "_small_window" : "");
}

void PrintTo(const Case& which, std::ostream* out) {
  *out << name_of(which);
}

/// Two ranks whose endpoints see each other through a wire.
class OverWire : public ::testing::Test {
 protected:
  void join(const Case& which) {
    if (testing::kThreadSanitizer) {
      GTEST_SKIP() << "the thread sanitizer sees races in libfabric, which is not instrumented";
    }
    auto wire = Wire::start(5);
    ASSERT_TRUE(wire.ok()) << wire.status().to_string();
    wire_ = std::move(*wire);
    std::string why_not;
    joined_ = transport::join({"", which.provider, which.signals, which.rails}, kRanks,
                              Talker::memory_bytes(kRanks, kLoad), which.window, 1, why_not,
                              [&](const std::string& introduction) {
                                auto led = support::through(*wire_, introduction,
                                                            support::weathers_named(which.weather));
                                EXPECT_TRUE(led.ok()) << led.status().to_string();
                                return led.ok() ? *led : introduction;
                              });
    if (!joined_) GTEST_SKIP() << why_not;
  }

  static constexpr int kRanks = 2;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<Joined> joined_;  // Closed before the wire is.
};

class Weathered : public OverWire, public ::testing::WithParamInterface<Case> {};

TEST_P(Weathered, BringsEveryMessageWhole) {
  join(GetParam());
  if (!joined_) return;
  constexpr int kMessages = 60;
  for (const std::int64_t wrong : talk(*joined_, kMessages, kLoad)) EXPECT_EQ(wrong, 0);
  EXPECT_GT(wire_->bytes(), kRanks * kMessages * kLoad.slot_bytes());
  if (GetParam().weather != "loss") return;
  EXPECT_GT(wire_->losses(), 0U);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const SignalMode mode : {SignalMode::immediate, SignalMode::ordered, SignalMode::serial}) {
    for (const char* weather : {"delay", "loss", "narrow"}) cases.push_back({mode, 1, weather});
    for (const char* weather : {"loss", "overtaking"}) cases.push_back({mode, 2, weather});
    cases.push_back({mode, 2, "overtaking", "tcp;ofi_rxm"});
    cases.push_back({mode, 2, "overtaking", kAnyTcp, 12});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Transport, Weathered, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return name_of(test.param); });

/// Ways to find out that a message is complete that are wrong where chunks overtake each other.
class WrongSchemes : public OverWire {
 protected:
  static constexpr int kMessages = 60;

  /// Both ranks in turn, until all has come, or `enough` messages were read wrong, after which some may
  /// never be complete.
  std::int64_t wrong(Scheme scheme, std::int64_t enough) {
    std::vector<Talker> talkers;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      talkers.emplace_back(*joined_->endpoints[i], joined_->memory[i], rank, kRanks, kMessages,
                           scheme, /*naps=*/true, kLoad);
    }
    const auto deadline = base::Deadline::after(seconds(60));
    bool done = false;
    while (!done && !deadline.expired()) {
      const bool one = talkers[0].step({});
      done = talkers[1].step({}) && one;
      if (talkers[0].wrong() + talkers[1].wrong() >= enough) done = true;
    }
    EXPECT_TRUE(done);
    return talkers[0].wrong() + talkers[1].wrong();
  }
  void expect(Scheme scheme, const Case& which, bool caught) {
    std::int64_t count = 0;
    // Where the machine is busy with other things, chance may have it that nothing overtakes.
    for (int turn = 0; turn < (caught ? 10 : 1) && count == 0; ++turn) {
      joined_.reset();
      join(which);
      if (!joined_) return;
      count = wrong(scheme, 10);
    }
    EXPECT_EQ(count > 0, caught) << count << " messages were read wrong";
  }
};

constexpr SignalMode kImmediate = SignalMode::immediate;

TEST_F(WrongSchemes, RunningCountIsCaughtOnTwoRails) {
  expect(Scheme::running_count, {kImmediate, 2, "overtaking"}, true);
}
TEST_F(WrongSchemes, ImmediateOnTheLastChunkIsCaughtOnTwoRails) {
  expect(Scheme::last_chunk, {kImmediate, 2, "overtaking"}, true);
}
TEST_F(WrongSchemes, RunningCountIsCaughtOnTwoRailsWithWords) {
  expect(Scheme::running_count, {SignalMode::ordered, 2, "overtaking"}, true);
}
// They are right where nothing overtakes: what catches them is the order, not the delay.
TEST_F(WrongSchemes, RunningCountIsRightOnOneRail) {
  expect(Scheme::running_count, {kImmediate, 1, "overtaking"}, false);
}
TEST_F(WrongSchemes, ImmediateOnTheLastChunkIsRightOnOneRail) {
  expect(Scheme::last_chunk, {kImmediate, 1, "overtaking"}, false);
}

sockaddr_in local(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

base::Descriptor listen_somewhere(std::uint16_t& port) {
  base::Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = local(0);
  socklen_t bytes = sizeof(address);
  EXPECT_EQ(::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::listen(socket.number(), 1), 0);
  EXPECT_EQ(::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  port = ntohs(address.sin_port);
  return socket;
}

base::Descriptor connect_to(std::uint16_t port) {
  base::Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = local(port);
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  return socket;
}

std::string receive(const base::Descriptor& socket, std::size_t bytes) {
  std::string got(bytes, '\0');
  const ssize_t count = ::recv(socket.number(), got.data(), bytes, MSG_WAITALL);
  got.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return got;
}

// More than a direction holds, both ways.
TEST(TheWire, BringsAllBytesInOrder) {
  constexpr std::size_t kBytes = std::size_t{12} << 20;
  auto wire = Wire::start(1);
  ASSERT_TRUE(wire.ok());
  std::uint16_t behind = 0;
  const base::Descriptor listener = listen_somewhere(behind);
  const auto port = (*wire)->lead_to(behind, {.delay = std::chrono::microseconds(100),
                                              .losses = 3,
                                              .stall_min = std::chrono::microseconds(100),
                                              .stall_max = std::chrono::microseconds(500)});
  ASSERT_TRUE(port.ok());
  const base::Descriptor near = connect_to(*port);
  const base::Descriptor far(::accept(listener.number(), nullptr, nullptr));
  for (const auto& [from, to] : {std::pair{&near, &far}, std::pair{&far, &near}}) {
    std::string sent(kBytes, '\0');
    support::Random random(3);
    for (char& byte : sent) byte = static_cast<char>(random.next());
    std::thread sender([&, socket = from] {
      EXPECT_EQ(::send(socket->number(), sent.data(), sent.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(sent.size()));
    });
    EXPECT_TRUE(receive(*to, kBytes) == sent);
    sender.join();
  }
  EXPECT_EQ((*wire)->bytes(), 2 * kBytes);
  EXPECT_GT((*wire)->losses(), 0U);
}

TEST(TheWire, EndsWhatEndsBehindIt) {
  auto wire = Wire::start(1);
  ASSERT_TRUE(wire.ok());
  std::uint16_t behind = 0;
  base::Descriptor listener = listen_somewhere(behind);
  const auto port = (*wire)->lead_to(behind, {});
  ASSERT_TRUE(port.ok());
  {
    const base::Descriptor near = connect_to(*port);
    base::Descriptor far(::accept(listener.number(), nullptr, nullptr));
    EXPECT_EQ(::send(far.number(), "bye", 3, 0), 3);
    far.reset();
    EXPECT_EQ(receive(near, 16), "bye");
  }
  listener.reset();
  EXPECT_EQ(receive(connect_to(*port), 16), "");
}

}  // namespace
}  // namespace sluice::transport
