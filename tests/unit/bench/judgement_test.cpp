// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "results.hpp"

namespace sluice::bench {
namespace {

ContestantResult contestant(Role role, double dispatch, double combine, double pair) {
  ContestantResult result;
  result.name = role == Role::ours ? "sluice" : "mpi";
  result.role = role;
  result.dispatch_us.p50 = dispatch;
  result.combine_us.p50 = combine;
  result.pair_us.p50 = pair;
  return result;
}

Results with_peer(double peer_pair, double floor) {
  Results results;
  results.checked = true;
  results.contestants = {contestant(Role::ours, 10, 20, 30),
                         contestant(Role::peer, 40, 50, peer_pair)};
  results.floor = {{"copies", {0, floor, 0, 0}}};
  judge_peer(results);
  return results;
}

TEST(Judgement, ComparesWithASoundPeer) {
  const Results results = with_peer(90, 60);  // Exactly the limit.
  ASSERT_EQ(results.ratios.size(), 1U);
  EXPECT_DOUBLE_EQ(results.ratios[0].dispatch, 4.0);
  EXPECT_DOUBLE_EQ(results.ratios[0].combine, 2.5);
  EXPECT_DOUBLE_EQ(results.ratios[0].pair, 3.0);
  EXPECT_EQ(results.exit_status(), 0);
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_DOUBLE_EQ(json["ratio"]["pair"].get<double>(), 3.0);
  EXPECT_FALSE(json.contains("void"));
}

TEST(Judgement, VoidsAWeakPeer) {
  const Results results = with_peer(91, 60);
  EXPECT_TRUE(results.ratios.empty());
  EXPECT_EQ(results.exit_status(), 3);
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_TRUE(json["ratio"].is_null());
  EXPECT_FALSE(json["void"].get<std::string>().empty());
}

TEST(Judgement, ComparesGraphWithGraphAndStreamWithStream) {
  Results results;
  for (const auto& [role, way, pair] :
       {std::tuple{Role::ours, "graph", 10.0}, std::tuple{Role::ours, "stream", 20.0},
        std::tuple{Role::peer, "graph", 50.0}, std::tuple{Role::peer, "stream", 40.0}}) {
    results.contestants.push_back(contestant(role, 10, 10, pair));
    results.contestants.back().way = way;
    if (role == Role::peer) results.contestants.back().about = "NCCL 2.27.3";
  }
  judge_peer(results);
  // No floor was measured, so nothing is void.
  EXPECT_EQ(results.exit_status(), 0);
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_DOUBLE_EQ(json["ratio"]["graph"]["pair"].get<double>(), 5.0);
  EXPECT_DOUBLE_EQ(json["ratio"]["stream"]["pair"].get<double>(), 2.0);
  EXPECT_EQ(json["results"][2]["about"], "NCCL 2.27.3");
  for (const char* key : {"floor_us", "void"}) EXPECT_FALSE(json.contains(key)) << key;
}

TEST(Judgement, AWayThatOnlyOneHasIsNotCompared) {
  Results results;
  results.contestants = {contestant(Role::ours, 10, 10, 20), contestant(Role::peer, 10, 10, 20)};
  results.contestants[0].way = "graph";
  results.contestants[1].way = "stream";
  judge_peer(results);
  EXPECT_TRUE(results.ratios.empty());
}

TEST(Judgement, AWrongValueOutweighsEverything) {
  Results results = with_peer(91, 60);
  results.contestants[1].wrong = 1;
  EXPECT_EQ(results.exit_status(), 1);
}

TEST(Json, HasTheDocumentedKeys) {
  const nlohmann::json json = nlohmann::json::parse(to_json(with_peer(80, 60)));
  EXPECT_TRUE(json.contains("machine"));
  EXPECT_EQ(json["case"]["tokens"].get<int>(), Case().tokens);
  ASSERT_EQ(json["results"].size(), 2U);
  for (const nlohmann::json& result : json["results"]) {
    for (const char* key : {"name", "wire_bytes", "naive_bytes", "wrong"}) {
      EXPECT_TRUE(result.contains(key)) << key;
    }
    for (const char* series : {"dispatch_us", "combine_us", "pair_us"}) {
      for (const char* key : {"min", "p50", "p99", "max"}) {
        EXPECT_TRUE(result[series].contains(key)) << series << "." << key;
      }
    }
  }
}

TEST(Json, WithoutCheckNothingIsClaimed) {
  Results results = with_peer(80, 60);
  results.checked = false;
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_TRUE(json["results"][0]["wrong"].is_null());
}

}  // namespace
}  // namespace sluice::bench
