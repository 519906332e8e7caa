// SPDX-License-Identifier: MIT
//
// Group::exchange_files, for threads and for a mesh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/thread_group.hpp"
#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/world.hpp"

namespace sluice {
namespace {

using base::Deadline;
using base::Descriptor;
using bootstrap::Group;
using bootstrap::ThreadGroup;
using std::chrono::seconds;
using testing::for_each_rank;
using testing::ForkedRanks;
using testing::new_rendezvous;

const WorldOptions kPatient{seconds(60)};

Deadline in_a_minute() {
  return Deadline::after(seconds(60));
}

std::string words_of(int rank) {
  return "this is of rank " + std::to_string(rank);
}

Result<Descriptor> file_with(const std::string& words) {
  auto file = memory::create_memory_file(words.size(), false);
  if (file.ok()) {
    EXPECT_EQ(::pwrite(file->number(), words.data(), words.size(), 0),
              static_cast<ssize_t>(words.size()));
  }
  return file;
}

std::string read_back(const Descriptor& file) {
  std::array<char, 64> text{};
  const ssize_t got = ::pread(file.number(), text.data(), text.size() - 1, 0);
  return got < 0 ? "unreadable" : std::string(text.data());
}

/// Runs body(rank, group) on the ranks of a world of threads, then of a world that is a mesh.
void for_each_group(int size, const std::function<void(int, Group&)>& body) {
  {
    SCOPED_TRACE("threads");
    auto groups = ThreadGroup::create_all(size);
    for_each_rank(size, [&](int rank) { body(rank, *groups[static_cast<std::size_t>(rank)]); });
  }
  SCOPED_TRACE("mesh");
  const std::string rendezvous = new_rendezvous();
  for_each_rank(size, [&](int rank) {
    auto world = World::join(rank, size, rendezvous, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    body(rank, *world->group());
    EXPECT_TRUE(world->barrier().ok());
  });
}

TEST(ExchangeFiles, EveryRankReadsEverybodysFile) {
  for_each_group(4, [](int rank, Group& group) {
    for (int round = 0; round < 3; ++round) {
      auto mine = file_with(words_of(rank));
      ASSERT_TRUE(mine.ok());
      auto files = group.exchange_files(mine, in_a_minute());
      ASSERT_TRUE(files.ok()) << files.status().to_string();
      ASSERT_EQ(files->size(), 4U);
      EXPECT_NE((*files)[static_cast<std::size_t>(rank)].number(), mine->number());
      mine->reset();
      for (int peer = 0; peer < 4; ++peer) {
        const Descriptor& file = (*files)[static_cast<std::size_t>(peer)];
        EXPECT_EQ(read_back(file), words_of(peer));
        EXPECT_NE(::fcntl(file.number(), F_GETFD) & FD_CLOEXEC, 0);
      }
    }
  });
}

TEST(ExchangeFiles, ARankMayBringNone) {
  for_each_group(3, [](int rank, Group& group) {
    const Result<Descriptor> mine =
        rank == 1 ? Result<Descriptor>(Descriptor()) : file_with(words_of(rank));
    auto files = group.exchange_files(mine, in_a_minute());
    ASSERT_TRUE(files.ok()) << files.status().to_string();
    EXPECT_EQ(read_back((*files)[0]), words_of(0));
    EXPECT_FALSE((*files)[1].open());
    EXPECT_EQ(read_back((*files)[2]), words_of(2));
  });
}

TEST(ExchangeFiles, OneRanksTroubleIsEverybodysStatusAndTheWorldWorksOn) {
  for_each_group(3, [](int rank, Group& group) {
    Result<Descriptor> mine = file_with(words_of(rank));
    if (rank == 2) mine = Status(StatusCode::out_of_memory, "no memory on GPU 5");
    auto refused = group.exchange_files(mine, in_a_minute());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().to_string(), "out_of_memory: rank 2: no memory on GPU 5");
    auto files = group.exchange_files(file_with(words_of(rank)), in_a_minute());
    ASSERT_TRUE(files.ok()) << files.status().to_string();
    EXPECT_EQ(read_back((*files)[2]), words_of(2));
  });
}

// The steps that a rank's exit code names; 0 is good.
int live_with_few_descriptors(int rank, const std::string& rendezvous) {
  auto world = World::join(rank, 4, rendezvous, kPatient);
  if (!world.ok()) return 2;
  auto mine = file_with(words_of(rank));
  if (!mine.ok()) return 3;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  if (rank == 3) {
    // Room for its own duplicate and one file more, of the three that come.
    const Descriptor next(::fcntl(mine->number(), F_DUPFD, 0));
    const rlimit few{static_cast<rlim_t>(next.number()) + 2, before.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 4;
  }
  const Status refused = world->group()->exchange_files(mine, in_a_minute()).status();
  if (refused.code() != StatusCode::io_error) return 5;
  if (refused.message().find("rank 3: the file of rank ") != 0) return 6;
  if (::setrlimit(RLIMIT_NOFILE, &before) != 0) return 7;
  auto files = world->group()->exchange_files(mine, in_a_minute());
  if (!files.ok() || read_back((*files)[1]) != words_of(1)) return 8;
  return world->leave(seconds(60)).ok() ? 0 : 9;
}

TEST(ExchangeFiles, AFileThatDoesNotArriveIsTheSameErrorOnAllProcesses) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const std::string rendezvous = new_rendezvous();
  ForkedRanks ranks(4, [&](int rank) { return live_with_few_descriptors(rank, rendezvous); });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.exit_code(rank), 0) << "rank " << rank;
}

}  // namespace
}  // namespace sluice
