// SPDX-License-Identifier: MIT
//
// Worlds that are joined through a caller's store: on one node and on several, ranks as threads and as
// processes, and what goes wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bootstrap/store_join.hpp"
#include "ranks.hpp"
#include "sluice/communicator.hpp"
#include "sluice/world.hpp"
#include "store/in_process_store.hpp"
#include "support/caller_stores.hpp"

namespace sluice {
namespace {

using bootstrap::HostIdentity;
using std::chrono::milliseconds;
using std::chrono::seconds;
using support::FileStore;
using support::MapStore;
using support::ScratchDirectory;
using testing::for_each_rank;
using testing::ForkedRanks;
using testing::kPatient;

/// Threads as if they were on nodes of so many ranks.
Result<World> join_on_nodes(const std::shared_ptr<Store>& store, int rank, int size, int node_size,
                            const WorldOptions& options = kPatient) {
  HostIdentity host = *bootstrap::this_host();
  host.node += "/" + std::to_string(rank / node_size);
  auto group =
      bootstrap::join_through(store, rank, size, base::Deadline::after(options.deadline), host);
  if (!group.ok()) return group.status();
  return World(std::move(*group), options);
}

// Everything that a world does by its store.
std::string use(World& world) {
  const int rank = world.rank();
  const int size = world.size();
  for (int round = 0; round < 4; ++round) {
    // Zeros too.
    auto all =
        world.all_gather(std::string(static_cast<std::size_t>(round), '\0') + std::to_string(rank));
    if (!all.ok()) return "all_gather: " + all.status().to_string();
    for (int peer = 0; peer < size; ++peer) {
      const std::string& blob = (*all)[static_cast<std::size_t>(peer)];
      if (blob.substr(static_cast<std::size_t>(round)) != std::to_string(peer)) return "a blob";
    }
  }
  // Across nodes, and one rank by itself.
  auto part = world.split(rank == size - 1 ? -1 : 0, -rank);
  if (rank == size - 1) {
    if (part.status().code() != StatusCode::failed_precondition) return "no color";
  } else {
    if (!part.ok()) return "split: " + part.status().to_string();
    auto members = part->all_gather(std::to_string(rank));
    if (!members.ok()) return "part: " + members.status().to_string();
    if (members->front() != std::to_string(size - 2)) return "the part's order";
    if (Status left = part->leave(seconds(60)); !left.ok()) return "part: " + left.to_string();
  }
  if (Status status = world.barrier(); !status.ok()) return "barrier: " + status.to_string();
  // More than a value of a store may have, as the last thing of all.
  auto long_ones = world.all_gather(std::string(rank % 2 == 0 ? 9U : 2500000U, 'x'));
  if (!long_ones.ok()) return "long blobs: " + long_ones.status().to_string();
  for (int peer = 0; peer < size; ++peer) {
    const std::string& blob = (*long_ones)[static_cast<std::size_t>(peer)];
    if (blob != std::string(peer % 2 == 0 ? 9U : 2500000U, 'x')) return "a long blob";
  }
  if (Status left = world.leave(seconds(60)); !left.ok()) return "leave: " + left.to_string();
  return "";
}

TEST(CallersStore, ThreadsOfOneNodeJoinThroughIt) {
  const auto store = std::make_shared<MapStore>();
  for (int round = 0; round < 3; ++round) {
    for_each_rank(4, [&](int rank) {
      auto world = World::join(rank, 4, store, kPatient);
      ASSERT_TRUE(world.ok()) << world.status().to_string();
      EXPECT_EQ(use(*world), "");
    });
    // Nothing stays behind, so the next world may use it.
    EXPECT_EQ(store->all().size(), 0U);
  }
  EXPECT_EQ(store.use_count(), 1);
}

// Also when nothing is called after a split that would make room for what it brought.
TEST(CallersStore, NothingStaysBehindASplitThatIsTheLastCall) {
  const auto store = std::make_shared<MapStore>();
  for (int round = 0; round < 2; ++round) {
    for (const bool across : {false, true}) {
      for_each_rank(4, [&](int rank) {
        auto world = join_on_nodes(store, rank, 4, 2);
        ASSERT_TRUE(world.ok()) << world.status().to_string();
        auto part = world->split(across ? rank % 2 : rank / 2, rank);
        ASSERT_TRUE(part.ok()) << part.status().to_string();
        EXPECT_TRUE(part->leave(seconds(60)).ok());
        EXPECT_TRUE(world->leave(seconds(60)).ok());
      });
      std::string left;
      for (const auto& [key, value] : store->all()) left += key + " ";
      EXPECT_EQ(left, "");
    }
  }
}

TEST(CallersStore, ThreadsOfSeveralNodesLiveWithIt) {
  for (const int node_size : {1, 2, 3}) {
    const auto store = std::make_shared<MapStore>();
    for (int round = 0; round < 2; ++round) {
      for_each_rank(4, [&](int rank) {
        auto world = join_on_nodes(store, rank, 4, node_size);
        ASSERT_TRUE(world.ok()) << world.status().to_string();
        EXPECT_GT(store.use_count(), 1);
        EXPECT_EQ(world->group()->nodes().nodes(), (4 + node_size - 1) / node_size);
        EXPECT_EQ(use(*world), "");
      });
      std::string left;
      for (const auto& [key, value] : store->all()) left += key + " ";
      EXPECT_EQ(left, "") << "nodes of " << node_size;
    }
    EXPECT_EQ(store.use_count(), 1);
  }
}

// Not by a thread that still serves peers: rank 1's communicator, which is open, keeps rank 0's relay.
TEST(CallersStore, IsGivenBackWithTheLastOfWorldAndCommunicator) {
  const auto map = std::make_shared<MapStore>();
  std::atomic<bool> seen{false};
  std::atomic<bool> unable{false};  // A build without libfabric.
  for_each_rank(2, [&](int rank) {
    const std::shared_ptr<Store> store(map.get(), [](Store*) {});  // With a count of its own.
    const std::shared_ptr<void> in_any_case(nullptr, [&, rank](void*) {
      if (rank == 0) seen.store(true);
    });
    auto world = join_on_nodes(store, rank, 2, 1);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    auto joined = std::make_unique<World>(std::move(*world));
    auto communicator =
        std::make_unique<Result<Communicator>>(Communicator::create(*joined, {2, 1, 32, 4}));
    if (communicator->status().code() == StatusCode::unimplemented) return unable.store(true);
    ASSERT_TRUE(communicator->ok()) << communicator->status().to_string();
    EXPECT_TRUE(joined->leave(seconds(60)).ok());
    if (rank == 0) {
      joined.reset();
      EXPECT_GT(store.use_count(), 1);
      communicator.reset();
      EXPECT_EQ(store.use_count(), 1);
      return;
    }
    while (!seen.load()) std::this_thread::sleep_for(milliseconds(1));
    communicator.reset();
    joined.reset();
    EXPECT_EQ(store.use_count(), 1);
  });
  if (unable.load()) GTEST_SKIP() << "no transport between nodes in this build";
}

// The library's own stores are of the same class.
TEST(CallersStore, MayBeOneOfTheLibrarysOwn) {
  const auto store = std::make_shared<store::InProcessStore>();
  for_each_rank(4, [&](int rank) {
    auto world = join_on_nodes(store, rank, 4, 2);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_EQ(use(*world), "");
  });
}

// SLUICE_NODE stands for another machine.
int join_as_process(const std::string& path, int rank, int size, int node_size,
                    const std::function<int(World&)>& body) {
  ::setenv("SLUICE_NODE", std::to_string(rank / node_size).c_str(), 1);
  auto world = World::join(rank, size, std::make_shared<FileStore>(path), kPatient);
  if (!world.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, world.status().to_string().c_str());
    return 100;
  }
  return body(*world);
}

TEST(CallersStore, ProcessesOfTwoNodesLiveWithIt) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const ScratchDirectory directory;
  const std::string path = directory.file("store");
  for (int round = 0; round < 2; ++round) {
    ForkedRanks ranks(4, [&](int rank) {
      return join_as_process(path, rank, 4, 2, [&](World& world) {
        const std::string trouble = use(world);
        if (!trouble.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, trouble.c_str());
        return trouble.empty() ? 0 : 1;
      });
    });
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.exit_code(rank), 0) << rank;
    EXPECT_EQ(FileStore(path).all().size(), 0U);
  }
}

// Whoever was on its node sees it end, and tells the others.
TEST(CallersStore, ADeathEndsTheCallsOfAllOthers) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const ScratchDirectory directory;
  const std::string path = directory.file("store");
  ForkedRanks ranks(4, [&](int rank) {
    return join_as_process(path, rank, 4, 2, [&](World& world) {
      if (!world.barrier().ok()) return 101;
      if (rank == 3) ::_exit(7);
      const Status status = world.barrier();
      if (status.code() != StatusCode::unavailable) return 102;
      return status.message().find("rank 3 ended") == std::string::npos ? 103 : 0;
    });
  });
  EXPECT_EQ(ranks.exit_code(3), 7);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.exit_code(rank), 0) << rank;
}

// In a forked child nothing is done to the store.
TEST(CallersStore, IsLeftAloneByAForkedChild) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const ScratchDirectory directory;
  const std::string path = directory.file("store");
  ForkedRanks ranks(2, [&](int rank) {
    return join_as_process(path, rank, 2, 1, [&](World& world) {
      const auto use_parents_world = [&](int) {
        const bool refused = world.barrier().code() == StatusCode::failed_precondition;
        const World gone = std::move(world);
        return refused ? 0 : 1;
      };
      ForkedRanks child(1, use_parents_world, ForkedRanks::Of::a_rank_in_a_world);
      if (child.exit_code(0) != 0) return 101;
      return use(world).empty() ? 0 : 102;
    });
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.exit_code(rank), 0) << rank;
}

/// Fails in one of its calls, or in every get().
class FailingStore final : public Store {
 public:
  static constexpr int kEveryGet = -1;

  FailingStore(std::shared_ptr<Store> inner, int call) : inner_(std::move(inner)), call_(call) {}
  bool throws = false;

  Status set(std::string_view key, std::string_view value,
             std::chrono::nanoseconds timeout) override {
    return fails() ? failure() : inner_->set(key, value, timeout);
  }
  Result<std::string> get(std::string_view key, std::chrono::nanoseconds timeout) override {
    return fails() || call_ == kEveryGet ? failure() : inner_->get(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta,
                           std::chrono::nanoseconds timeout) override {
    if (fails()) return failure();
    return inner_->add(key, delta, timeout);
  }
  Result<Swap> compare_and_set(std::string_view key, const std::optional<std::string>& expected,
                               std::string_view desired,
                               std::chrono::nanoseconds timeout) override {
    if (fails()) return failure();
    return inner_->compare_and_set(key, expected, desired, timeout);
  }
  Result<bool> erase(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (fails()) return failure();
    return inner_->erase(key, timeout);
  }
  bool has_failed() const { return calls_ > call_; }

 private:
  bool fails() { return calls_++ == call_; }
  Status failure() const {
    if (throws) throw std::runtime_error("the disk burns");
    return {StatusCode::io_error, "the disk is full"};
  }

  std::shared_ptr<Store> inner_;
  const int call_;
  int calls_ = 0;
};

// In one call of rank 0 after the other: it gets what the store said, and rank 1 hears of it, though nobody
// has a deadline. What is only tidied up may stay behind.
TEST(CallersStore, ThatFailsOnceEndsThatCallEverywhere) {
  int failed = 0;
  bool more = true;
  for (int call = 0; more; ++call) {
    const auto inner = std::make_shared<MapStore>();
    const auto failing = std::make_shared<FailingStore>(inner, call);
    std::atomic<int> down{0};
    for_each_rank(2, [&](int rank) {
      auto world = join_on_nodes(rank == 0 ? std::shared_ptr<Store>(failing) : inner, rank, 2, 1,
                                 {std::chrono::nanoseconds(-1)});
      Status status = world.status();
      for (int round = 0; world.ok() && status.ok() && round < 2; ++round) {
        status = world->barrier();
      }
      if (status.ok()) {
        EXPECT_TRUE(world->leave(seconds(60)).ok());
        return;
      }
      ++down;
      EXPECT_NE(status.message().find("the disk is full"), std::string::npos)
          << "call " << call << ": " << status.to_string();
      if (!world.ok()) return;
      // At once, and the same again.
      EXPECT_EQ(world->barrier().to_string(), status.to_string());
      EXPECT_TRUE(world->leave(seconds(60)).ok());
    });
    // In rank 0's last calls the other one may have all that it needs.
    if (down == 2) ++failed;
    more = failing->has_failed();
  }
  EXPECT_GT(failed, 10);
}

// Rank 1 can still write: the others hear why it gave up, long before their deadline.
TEST(CallersStore, WhoGivesUpTellsTheOthers) {
  const auto inner = std::make_shared<MapStore>();
  for_each_rank(3, [&](int rank) {
    std::shared_ptr<Store> mine = inner;
    if (rank == 1) mine = std::make_shared<FailingStore>(inner, FailingStore::kEveryGet);
    if (rank == 2) return;  // Never comes.
    const auto world = World::join(rank, 3, mine, {std::chrono::nanoseconds(-1)});
    EXPECT_EQ(world.status().to_string(),
              rank == 1 ? "io_error: the disk is full"
                        : "unavailable: rank 1 gave up: io_error: the disk is full");
  });
}

TEST(CallersStore, ThatThrowsIsAnInternalError) {
  const auto failing = std::make_shared<FailingStore>(std::make_shared<MapStore>(), 0);
  failing->throws = true;
  const auto world = World::join(0, 1, failing, kPatient);
  EXPECT_EQ(world.status().to_string(), "internal: the store threw: the disk burns");
}

TEST(CallersStore, RankThatNeverComesIsNamedAtTheDeadline) {
  const auto store = std::make_shared<MapStore>();
  for_each_rank(2, [&](int rank) {
    const auto world = World::join(rank, 3, store, {milliseconds(400)});
    // The first to be late tells the other.
    EXPECT_TRUE(world.status().code() == StatusCode::deadline_exceeded ||
                world.status().code() == StatusCode::unavailable);
    EXPECT_NE(world.status().message().find("rank 2 did not join before the deadline"),
              std::string::npos)
        << world.status().to_string();
  });
}

/// Takes its time over every call, whatever was said.
class LateStore final : public MapStore {
 public:
  void with(const std::function<void(Keys&)>& call) override {
    std::this_thread::sleep_for(milliseconds(150));
    MapStore::with(call);
  }
};

TEST(CallersStore, ThatIsLateMeetsTheDeadline) {
  const auto store = std::make_shared<LateStore>();
  const auto world = World::join(0, 2, store, {milliseconds(100)});
  EXPECT_EQ(world.status().code(), StatusCode::deadline_exceeded) << world.status().to_string();
}

/// It needs longer to answer than the library first has the patience for, and keeps to what it is given.
class SlowStore final : public MapStore {
 public:
  Result<std::string> get(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (timeout.count() >= 0 && timeout < kAnswer) {
      std::this_thread::sleep_for(timeout);
      return Status(StatusCode::deadline_exceeded, "no answer yet");
    }
    std::this_thread::sleep_for(kAnswer);
    return MapStore::get(key, timeout.count() < 0 ? timeout : timeout - kAnswer);
  }

 private:
  static constexpr milliseconds kAnswer{400};
};

TEST(CallersStore, MayBeSlow) {
  const auto store = std::make_shared<SlowStore>();
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, 2, store, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
    EXPECT_TRUE(world->leave(seconds(30)).ok());
  });
}

TEST(CallersStore, OtherSizesAreAMismatch) {
  const auto store = std::make_shared<MapStore>();
  std::atomic<int> mismatches{0};
  for_each_rank(2, [&](int rank) {
    const auto world = World::join(rank, 2 + rank, store, {std::chrono::nanoseconds(-1)});
    ASSERT_FALSE(world.ok());
    if (world.status().code() == StatusCode::mismatch) {
      ++mismatches;
    } else {
      EXPECT_EQ(world.status().code(), StatusCode::unavailable);
    }
    EXPECT_NE(world.status().message().find(" a world of "), std::string::npos);
  });
  EXPECT_EQ(mismatches, 1);
}

TEST(CallersStore, TwoOfOneRankAreRefused) {
  const auto store = std::make_shared<MapStore>();
  std::atomic<int> refused{0};
  for_each_rank(2, [&](int) {
    const auto world = World::join(0, 2, store, {std::chrono::nanoseconds(-1)});
    if (world.status().code() == StatusCode::failed_precondition) ++refused;
    EXPECT_NE(world.status().message().find("rank 0"), std::string::npos);
  });
  EXPECT_EQ(refused, 1);
}

// One that comes when all have joined does not end their world.
TEST(CallersStore, AStrangerDoesNotEndAWorld) {
  const auto store = std::make_shared<MapStore>();
  std::atomic<int> joined{0};
  for_each_rank(3, [&](int rank) {
    if (rank == 2) {
      while (joined < 2) std::this_thread::yield();
      EXPECT_EQ(World::join(0, 2, store, kPatient).status().code(),
                StatusCode::failed_precondition);
      EXPECT_EQ(World::join(0, 3, store, kPatient).status().code(), StatusCode::mismatch);
      ++joined;
      return;
    }
    auto world = join_on_nodes(store, rank, 2, 1);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    ++joined;
    while (joined < 3) std::this_thread::yield();
    EXPECT_EQ(use(*world), "");
  });
  EXPECT_EQ(store->all().size(), 0U);
}

TEST(CallersStore, BadArgumentsAreRefusedBeforeItIsAsked) {
  EXPECT_EQ(World::join(0, 1, std::shared_ptr<Store>()).status().code(),
            StatusCode::invalid_argument);
  const auto store = std::make_shared<MapStore>();
  EXPECT_EQ(World::join(2, 2, store).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::join(0, 0, store).status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(store->all().empty());
}

}  // namespace
}  // namespace sluice
