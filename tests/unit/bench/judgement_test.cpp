// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  ASSERT_TRUE(results.ratio.has_value());
  EXPECT_DOUBLE_EQ(results.ratio->dispatch, 4.0);
  EXPECT_DOUBLE_EQ(results.ratio->combine, 2.5);
  EXPECT_DOUBLE_EQ(results.ratio->pair, 3.0);
  EXPECT_EQ(results.exit_status(), 0);
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_DOUBLE_EQ(json["ratio"]["pair"].get<double>(), 3.0);
  EXPECT_FALSE(json.contains("void"));
}

TEST(Judgement, VoidsAWeakPeer) {
  const Results results = with_peer(91, 60);
  EXPECT_FALSE(results.ratio.has_value());
  EXPECT_EQ(results.exit_status(), 3);
  const nlohmann::json json = nlohmann::json::parse(to_json(results));
  EXPECT_TRUE(json["ratio"].is_null());
  EXPECT_FALSE(json["void"].get<std::string>().empty());
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
