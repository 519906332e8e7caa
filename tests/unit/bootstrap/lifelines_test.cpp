// SPDX-License-Identifier: MIT
#include "bootstrap/lifelines.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_stream.hpp"
#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/thread_group.hpp"
#include "ranks.hpp"
#include "store/socket.hpp"

namespace sluice {
namespace {

using base::Deadline;
using base::Descriptor;
using bootstrap::Lifelines;
using bootstrap::ThreadGroup;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::for_each_rank;

constexpr const char* kHere = "127.0.0.1";

/// What a test may do with what all ranks say before one rank hears it.
using Overhears = std::function<void(int rank, std::vector<std::string>& blobs)>;

struct Tied {
  std::string host = kHere;
  std::vector<int> peers;
  bool same_network = true;
};

std::vector<std::optional<Lifelines>> tie_all(const std::vector<Tied>& ranks, milliseconds longest,
                                              const Overhears& overhears = {}) {
  const int size = static_cast<int>(ranks.size());
  auto groups = ThreadGroup::create_all(size);
  std::vector<std::optional<Lifelines>> all(ranks.size());
  for_each_rank(size, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bootstrap::Gather gather = [&](std::string_view blob) {
      auto blobs = groups[index]->all_gather(blob, Deadline::after(seconds(60)));
      if (blobs.ok() && overhears) overhears(rank, *blobs);
      return blobs;
    };
    std::vector<Lifelines::Peer> peers;
    for (const int peer : ranks[index].peers) peers.push_back({peer, ranks[index].same_network});
    auto lines = Lifelines::tie(rank, size, peers, ranks[index].host, gather, longest);
    ASSERT_TRUE(lines.ok()) << lines.status().to_string();
    all[index] = std::move(lines).value();
  });
  return all;
}

bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

TEST(Lifelines, TheEndOfARankIsSeenByThoseThatHaveALineWithIt) {
  // 0 with 1 and 2, and 1 with 2; 3 with 0 alone.
  auto all =
      tie_all({{kHere, {1, 2, 3}}, {kHere, {0, 2}}, {kHere, {0, 1}}, {kHere, {0}}}, seconds(60));
  for (const auto& lines : all) {
    for (int peer = 0; peer < 4; ++peer) EXPECT_FALSE(lines->cut(peer));
  }
  all[2].reset();
  EXPECT_TRUE(comes_true([&] { return all[0]->cut(2); }));
  EXPECT_TRUE(comes_true([&] { return all[1]->cut(2); }));
  EXPECT_FALSE(all[3]->cut(2));
  EXPECT_FALSE(all[0]->cut(1));
  EXPECT_FALSE(all[0]->cut(3));
  EXPECT_FALSE(all[1]->cut(0));
  EXPECT_TRUE(all[0]->cut(2)) << "it stays so";
}

TEST(Lifelines, WhoHasSaidGoodbyeEndsInOrder) {
  auto all = tie_all({{kHere, {1, 2}}, {kHere, {0}}, {kHere, {0}}}, seconds(60));
  all[1]->say_goodbye();
  all[0]->say_goodbye();  // Unread when rank 1 ends, whose system then resets the connection.
  all[1].reset();
  all[2].reset();
  ASSERT_TRUE(comes_true([&] { return all[0]->cut(2); }));
  EXPECT_FALSE(all[0]->cut(1));
  all[0]->say_goodbye();  // To nobody.
}

TEST(Lifelines, NoneAreAskedOfWhoHasNone) {
  const Lifelines none;
  none.say_goodbye();
  EXPECT_FALSE(none.cut(0));
}

// Nobody waits for lines that cannot be: else it would be for a minute.
TEST(Lifelines, WhoCannotListenHasThoseThatItCalls) {
  const auto begin = std::chrono::steady_clock::now();
  // Rank 1, which 2 would call, and which calls 0.
  auto all = tie_all({{kHere, {1, 2}}, {"192.0.2.1", {0, 2}}, {kHere, {0, 1}}}, seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
  all[1].reset();
  EXPECT_TRUE(comes_true([&] { return all[0]->cut(1); }));
  EXPECT_FALSE(all[2]->cut(1));
}

// A machine that knows its own name as a loopback address says so to others, who have one, too.
TEST(Lifelines, LoopbackAddressesOfOtherMachinesAreNotCalled) {
  const auto begin = std::chrono::steady_clock::now();
  auto all = tie_all({{kHere, {1}, false}, {kHere, {0}, false}}, seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
  all[1].reset();
  EXPECT_FALSE(all[0]->cut(1));
}

TEST(Lifelines, StrangersWhoCallAndRanksThatDoNotAreDoneWithout) {
  std::vector<Descriptor> strangers;
  const auto overhears = [&](int rank, std::vector<std::string>& blobs) {
    if (rank != 1) return;
    const std::string at = base::ByteReader(blobs[0]).get_string();
    const auto address = store::parse_address(at);
    ASSERT_TRUE(address.ok()) << at;
    for (const char* words : {"", "", "GET / HTTP/1.0\r\n\r\n and so on, for longer than a rank"}) {
      auto socket = store::connect_to(*address, Deadline::after(seconds(60)));
      ASSERT_TRUE(socket.ok()) << socket.status().to_string();
      ASSERT_TRUE(store::send_all(*socket, words, Deadline::after(seconds(60)), "words").ok());
      strangers.push_back(std::move(*socket));
    }
  };
  // Rank 2 wants no line; rank 1 calls after the strangers.
  auto all = tie_all({{kHere, {1, 2}}, {kHere, {0}}, {kHere, {}}}, seconds(3), overhears);
  strangers.clear();
  EXPECT_FALSE(all[0]->cut(1));
  EXPECT_FALSE(all[0]->cut(2));
  all[2].reset();
  all[1].reset();
  EXPECT_TRUE(comes_true([&] { return all[0]->cut(1); }));
  EXPECT_FALSE(all[0]->cut(2));
}

}  // namespace
}  // namespace sluice
