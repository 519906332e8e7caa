// SPDX-License-Identifier: MIT
//
// Worlds of processes that are made with a gather of the caller's own, some of them on several nodes. Their ranks are threads
// here, as in process_world_test.cpp.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/source_hash.hpp"
#include "bootstrap/process_group.hpp"
#include "bootstrap/store_gather.hpp"
#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/version.hpp"
#include "sluice/world.hpp"
#include "store/address.hpp"
#include "store/in_process_store.hpp"
#include "store/socket.hpp"
#include "support/alone.hpp"

namespace sluice {
namespace {

using base::Deadline;
using bootstrap::Group;
using bootstrap::HostIdentity;
using bootstrap::ProcessGroup;
using std::chrono::seconds;
using testing::for_each_rank;
using testing::kPatient;

/// A gather of the caller's own, for World::create and for hosts that differ.
class OwnGather {
 public:
  Result<std::vector<std::string>> operator()(int rank, int size, std::string_view blob,
                                              int gather = 0) {
    return bootstrap::gather_through(store_, gather, rank, size, blob,
                                     Deadline::after(seconds(60)));
  }

 private:
  store::InProcessStore store_;
};

TEST(ProcessWorld, JoinsWithACallersAllGather) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    auto world = World::create(
        rank, 3, [&](std::string_view blob) { return gather(rank, 3, blob); }, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
  });
  auto wrong = World::create(0, 2, [](std::string_view blob) {
    return Result<std::vector<std::string>>(std::vector<std::string>{std::string(blob)});
  });
  EXPECT_EQ(wrong.status().code(), StatusCode::mismatch);
  // Of a build of other sources.
  const std::string sources(base::source_hash());
  EXPECT_EQ(sources.size(), 16U);
  const std::string others = "0123456789abcdef";
  auto other = World::create(0, 2, [&](std::string_view blob) {
    std::string theirs(blob);
    theirs.replace(theirs.find(sources), sources.size(), others);
    return Result<std::vector<std::string>>(std::vector<std::string>{std::string(blob), theirs});
  });
  EXPECT_EQ(other.status().code(), StatusCode::mismatch);
  const std::string version_text(version());
  EXPECT_NE(other.status().message().find("the rank at place 1 of the gather has sluice " +
                                          version_text + ", of sources " + others),
            std::string::npos)
      << other.status().to_string();
  auto throwing = World::create(0, 2, [](std::string_view) -> Result<std::vector<std::string>> {
    throw std::runtime_error("no network");
  });
  EXPECT_EQ(throwing.status().code(), StatusCode::internal);
}

/// One of three, of whom rank 1 is on a node of its own.
Result<std::unique_ptr<Group>> create_with_one_elsewhere(OwnGather& gather, int rank) {
  HostIdentity host = *bootstrap::this_host();
  if (rank == 1) host.node = "elsewhere";
  int calls = 0;
  return ProcessGroup::create(rank, 3,
                              [&](std::string_view blob) { return gather(rank, 3, blob, calls++); },
                              Deadline::after(seconds(60)), host, {"localhost", nullptr});
}

TEST(ProcessWorld, WhoIsCutShortOnAnotherNodeEndsTheCallsOfAll) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    const auto deadline = [] { return Deadline::after(seconds(60)); };
    auto group = create_with_one_elsewhere(gather, rank);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    if (rank == 2) (*group)->give_up(Status(StatusCode::out_of_memory, "a test"));
    const Status status = (*group)->all_gather({}, deadline()).status();
    EXPECT_EQ(status.code(), rank == 2 ? StatusCode::out_of_memory : StatusCode::unavailable)
        << status.to_string();
    EXPECT_FALSE((*group)->is_dead(2));
    // Whom others may still ask lives until they have.
    static_cast<void>((*group)->leave(Deadline::after(seconds(5))));
  });
}

TEST(ProcessWorld, SeveralNodes) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    const auto deadline = [] { return Deadline::after(seconds(60)); };
    auto group = create_with_one_elsewhere(gather, rank);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    bootstrap::Group& all = **group;
    EXPECT_EQ(all.nodes().nodes(), 2);
    EXPECT_TRUE(all.nodes().together(0, 2));
    EXPECT_FALSE(all.nodes().together(0, 1));
    EXPECT_NE(all.network(), nullptr);
    // More gathers than one, of different lengths: in one value of the store, and in several.
    const auto blob_of = [](int peer, std::size_t bytes) {
      std::string blob(static_cast<std::size_t>(peer) * bytes, 'x');
      for (std::size_t i = 0; i < blob.size(); i += 1000) blob[i] = static_cast<char>('a' + i % 23);
      return blob;
    };
    constexpr std::size_t kValue = std::size_t{1} << 20;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kValue / 2 - 4, kValue / 2 - 3,
                                    kValue - 8, kValue - 7, std::size_t{2}, 3 * kValue}) {
      auto blobs = all.all_gather(blob_of(rank, bytes), deadline());
      ASSERT_TRUE(blobs.ok()) << blobs.status().to_string();
      for (int peer = 0; peer < 3; ++peer) {
        EXPECT_TRUE((*blobs)[static_cast<std::size_t>(peer)] == blob_of(peer, bytes))
            << peer << " " << bytes;
      }
    }
    // One that is too long is everybody's Status, and the world goes on.
    const std::string long_one(rank == 1 ? bootstrap::kBlobBytesMax + 1 : 5, 'x');
    const Status too_long = all.all_gather(long_one, deadline()).status();
    EXPECT_EQ(too_long.code(), StatusCode::invalid_argument) << too_long.to_string();
    EXPECT_NE(too_long.message().find("rank 1 gave a blob of 268435457"), std::string::npos);
    // Memory of one's node is mapped, that of others is not.
    auto shared = all.share(4096, true, deadline());
    ASSERT_TRUE(shared.ok()) << shared.status().to_string();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(shared->base(peer) != nullptr, all.nodes().together(peer, rank)) << peer;
    }
    *shared->base(rank) = static_cast<std::byte>(rank + 1);
    ASSERT_TRUE(all.all_gather({}, deadline()).ok());
    if (rank == 0) {
      EXPECT_EQ(static_cast<int>(*shared->base(2)), 3);
    }
    // Trouble on one node is everybody's Status.
    auto none = all.share(rank == 1 ? std::size_t{1} << 62 : 64, false, deadline());
    EXPECT_EQ(none.status().code(), StatusCode::out_of_memory) << none.status().to_string();
    // Files reach one's own node; trouble with one is everybody's Status.
    auto files = all.exchange_files(memory::create_memory_file(4096, false), deadline());
    ASSERT_TRUE(files.ok()) << files.status().to_string();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ((*files)[static_cast<std::size_t>(peer)].open(), all.nodes().together(peer, rank))
          << peer;
    }
    const Status trouble(StatusCode::out_of_memory, "no file");
    auto refused = all.exchange_files(
        rank == 1 ? Result<base::Descriptor>(trouble) : memory::create_memory_file(64, false),
        deadline());
    EXPECT_EQ(refused.status().code(), StatusCode::out_of_memory) << refused.status().to_string();
    auto part = all.split(rank == 2 ? 1 : 0, rank, deadline());
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ((*part)->size(), rank == 2 ? 1 : 2);
    EXPECT_TRUE((*part)->all_gather("part", deadline()).ok());
    EXPECT_TRUE((*part)->leave(deadline()).ok());
    EXPECT_TRUE(all.leave(deadline()).ok());
    EXPECT_EQ(all.all_gather({}, deadline()).status().code(), StatusCode::failed_precondition);
  });
}

TEST(ProcessWorld, OneRanksTroubleBeforeTheMeshIsEverybodysStatus) {
  OwnGather gather;
  for_each_rank(2, [&](int rank) {
    Result<HostIdentity> host = bootstrap::this_host();
    if (rank == 1) host = Status(StatusCode::io_error, "no /proc");
    auto group = ProcessGroup::create(
        rank, 2, [&](std::string_view blob) { return gather(rank, 2, blob); },
        Deadline::after(seconds(60)), host);
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(group.status().to_string(), "io_error: rank 1: no /proc");
  });
}

// Machines restored from one image look like one machine, on which the other's processes are not to be found.
TEST(ProcessWorld, AMachineWithTheBootIdOfThisOneIsSuspected) {
  const auto watch = bootstrap::watch_process(::getpid());
  if (!watch.ok() || !watch->open()) GTEST_SKIP() << "this kernel does not watch processes";
  support::wait_until_alone();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  OwnGather gather;
  for_each_rank(2, [&](int rank) {
    HostIdentity host = *bootstrap::this_host();
    if (rank == 1) host.process = child;
    auto group = ProcessGroup::create(
        rank, 2, [&](std::string_view blob) { return gather(rank, 2, blob); },
        Deadline::after(seconds(60)), host);
    EXPECT_EQ(group.status().code(), StatusCode::unavailable);
    if (rank == 1) return;  // It may have reached rank 0, which ended then.
    EXPECT_NE(group.status().message().find("boot_id: there SLUICE_NODE"), std::string::npos)
        << group.status().to_string();
  });
}

TEST(ProcessWorld, StrangersAtAListenerAreDropped) {
  OwnGather gather;
  std::mutex mutex;
  std::vector<base::Descriptor> strangers;
  for_each_rank(3, [&](int rank) {
    const auto own_gather = [&](std::string_view blob) -> Result<std::vector<std::string>> {
      auto all = gather(rank, 3, blob);
      if (!all.ok()) return all;
      // Every rank first sends strangers to rank 0: silent, garbage, and one that hangs up.
      const std::size_t at = all->front().find("sluice-");
      store::Address address;
      address.kind = store::Address::Kind::unix_abstract;
      address.name = all->front().substr(at, 7 + 32);
      for (int kind = 0; kind < 3; ++kind) {
        auto socket = store::connect_to(address, Deadline::after(seconds(60)));
        if (!socket.ok()) return socket.status();
        if (kind == 1) {
          const Status sent = store::send_all(*socket, std::string(36, 'g'),
                                              Deadline::after(seconds(60)), "garbage");
          if (!sent.ok()) return sent;
        }
        if (kind == 2) continue;
        const std::lock_guard lock(mutex);
        strangers.push_back(std::move(*socket));
      }
      return all;
    };
    auto world = World::create(rank, 3, own_gather, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
  });
}

}  // namespace
}  // namespace sluice
