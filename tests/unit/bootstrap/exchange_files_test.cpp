// SPDX-License-Identifier: MIT
//
// Group::exchange_files, for threads and for a mesh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
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
#include "bootstrap/mesh.hpp"
#include "bootstrap/mesh_files.hpp"
#include "bootstrap/thread_group.hpp"
#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/world.hpp"

namespace sluice {
namespace {

using base::Deadline;
using base::Descriptor;
using bootstrap::Group;
using bootstrap::Mesh;
using bootstrap::ThreadGroup;
using std::chrono::seconds;
using testing::for_each_rank;
using testing::ForkedRanks;
using testing::kPatient;
using testing::new_rendezvous;

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

constexpr int kProcesses = 4;
using Connections = std::array<std::array<Descriptor, kProcesses>, kProcesses>;

/// [a][b] is rank a's end of the connection to rank b.
void connect_all(Connections& ends) {
  for (std::size_t a = 0; a < kProcesses; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      std::array<int, 2> pair{-1, -1};
      constexpr int kKind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
      ASSERT_EQ(::socketpair(AF_UNIX, kKind, 0, pair.data()), 0);
      ends[a][b] = Descriptor(pair[0]);
      ends[b][a] = Descriptor(pair[1]);
    }
  }
}

// The steps that a rank's exit code names; 0 is good. A bare mesh: a world has a thread that
// watches the peers, and while that starts, a sanitizer's check of it wants descriptors too.
int live_with_few_descriptors(int rank, Connections& ends) {
  std::vector<Mesh::Peer> peers(kProcesses);
  for (std::size_t peer = 0; peer < kProcesses; ++peer) {
    peers[peer].socket = std::move(ends[static_cast<std::size_t>(rank)][peer]);
  }
  Mesh mesh(rank, std::move(peers));
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
  const Status refused = exchange_files_over(mesh, mine, in_a_minute()).status();
  if (refused.code() != StatusCode::io_error) return 5;
  if (refused.message().find("rank 3: the file of rank ") != 0) return 6;
  if (::setrlimit(RLIMIT_NOFILE, &before) != 0) return 7;
  auto files = exchange_files_over(mesh, mine, in_a_minute());
  if (!files.ok() || read_back((*files)[1]) != words_of(1)) return 8;
  return agree(mesh, bootstrap::ExchangeKind::files_outcome, {}, in_a_minute()).ok() ? 0 : 9;
}

TEST(ExchangeFiles, AFileThatDoesNotArriveIsTheSameErrorOnAllProcesses) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  Connections ends;
  connect_all(ends);
  ForkedRanks ranks(kProcesses, [&](int rank) { return live_with_few_descriptors(rank, ends); });
  for (int rank = 0; rank < kProcesses; ++rank) {
    EXPECT_EQ(ranks.exit_code(rank), 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace sluice
