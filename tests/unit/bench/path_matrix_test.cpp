// SPDX-License-Identifier: MIT
#include "path_matrix.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

namespace sluice::bench {
namespace {

using Kind = Path::Kind;

TEST(PathMatrix, NamesTheRailPeer) {
  // 0, 1, 2 | 3: all of the first node reach the other by its only rank, which reaches it by rank 0.
  const PathMatrix matrix = PathMatrix::of_sizes({3, 1}, Gpus{});
  EXPECT_EQ(matrix.path(1, 1).kind, Kind::self);
  EXPECT_EQ(matrix.path(1, 2).kind, Kind::shared_memory);
  EXPECT_EQ(matrix.path(2, 3).kind, Kind::network);
  EXPECT_EQ(matrix.path(2, 3).rail_peer, 3);
  EXPECT_EQ(matrix.path(3, 2).kind, Kind::network);
  EXPECT_EQ(matrix.path(3, 2).rail_peer, 0);
}

TEST(PathMatrix, KnowsGpus) {
  const routing::NodeMap nodes = routing::NodeMap::of_sizes(std::vector<int>{4, 1});
  const PathMatrix matrix(nodes, {{"a", "gpu0", {{"gpu1", "NV18"}}},
                                  {"a", "gpu1", {{"gpu0", "NV18"}}},
                                  {"a", "gpu1", {{"gpu0", "NV18"}}},
                                  {"a", "gpu2", {{"gpu0", "SYS"}}},  // But gpu0 does not reach it.
                                  {"b", "gpu0", {}}});
  EXPECT_EQ(matrix.path(0, 1).kind, Kind::peer_access);
  EXPECT_EQ(matrix.path(0, 1).way, "NV18");
  EXPECT_EQ(matrix.path(3, 0).way, "");
  EXPECT_EQ(matrix.json()["matrix"][0][1]["way"], "NV18");
  EXPECT_EQ(matrix.path(1, 2).kind, Kind::same_gpu);
  EXPECT_EQ(matrix.path(3, 0).kind, Kind::shared_memory);
  EXPECT_EQ(matrix.path(0, 4).kind, Kind::network);
}

TEST(PathMatrix, TakesAGpuForEachRankInTurn) {
  Gpus gpus;
  gpus.list.resize(2);
  gpus.list[0].bus = "gpu0";
  gpus.list[0].reachable = {{1, ""}};
  gpus.list[1].bus = "gpu1";
  gpus.list[1].reachable = {{0, ""}};
  const PathMatrix matrix = PathMatrix::of_sizes({3}, gpus);
  EXPECT_EQ(matrix.path(0, 1).kind, Kind::peer_access);
  EXPECT_EQ(matrix.path(0, 2).kind, Kind::same_gpu);
}

TEST(PathMatrix, SaysTheSameInJson) {
  const nlohmann::json document = PathMatrix::of_sizes({2, 2}, Gpus{}).json();
  EXPECT_EQ(document["ranks"][3]["node"], 1);
  EXPECT_TRUE(document["ranks"][3]["gpu"].is_null());
  EXPECT_EQ(document["matrix"][0][0]["kind"], "self");
  EXPECT_EQ(document["matrix"][0][1]["kind"], "shared_memory");
  EXPECT_EQ(document["matrix"][1][2]["kind"], "network");
  EXPECT_EQ(document["matrix"][1][2]["rail_peer"], 3);
}

TEST(PathMatrix, EveryRankOfAWorldGetsTheSame) {
  setenv("SLUICE_NETWORK", "memory", 1);
  Result<std::vector<World>> worlds = World::threads(std::vector<int>{2, 1});
  unsetenv("SLUICE_NETWORK");
  ASSERT_TRUE(worlds.ok());
  std::vector<nlohmann::json> seen(worlds->size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds->size(); ++rank) {
    threads.emplace_back([&, rank] {
      const Result<PathMatrix> matrix = PathMatrix::of_world((*worlds)[rank], Gpus{});
      if (matrix) seen[rank] = matrix->json();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const nlohmann::json expected = PathMatrix::of_sizes({2, 1}, Gpus{}).json();
  for (const nlohmann::json& one : seen) EXPECT_EQ(one, expected);
}

}  // namespace
}  // namespace sluice::bench
