// SPDX-License-Identifier: MIT
//
// Ranks that die and ranks that freeze, at every place of a round. Survivors return from every
// call, with reports that name the lost ranks and sums in which nothing of them is left.
#include <gtest/gtest.h>

#include "faults/scene.hpp"

namespace sluice::faults {
namespace {

constexpr Layout kLayouts[] = {Layout::expert_slab, Layout::expert_major, Layout::rank_major};

struct Place {
  Mode mode;
  std::size_t fault;  // Index in all_faults(): names are made before main().
};

std::vector<Place> all_places() {
  std::vector<Place> places;
  for (const Mode mode : {Mode::latency, Mode::throughput}) {
    for (std::size_t fault = 0; fault < all_faults().size(); ++fault) {
      places.push_back({mode, fault});
    }
  }
  return places;
}

// Layouts and victims take turns, so that all meet all kinds of places.
Scene scene_of(const Place& place) {
  Scene scene;
  scene.terms.mode = place.mode;
  const std::size_t turn = place.fault + (place.mode == Mode::throughput ? 1 : 0);
  scene.terms.layout = kLayouts[turn % 3];
  scene.victims = {{static_cast<int>(turn % 4), all_faults()[place.fault]}};
  return scene;
}

class AtEveryPlace : public ::testing::TestWithParam<Place> {};

TEST_P(AtEveryPlace, Killed) {
  const Scene scene = scene_of(GetParam());
  const std::vector<std::string> wrong = unexpected(run_killed(scene), scene);
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

TEST_P(AtEveryPlace, Frozen) {
  const Scene scene = scene_of(GetParam());
  const support::RunResult result = run_frozen(scene);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  return std::string(to_string(info.param.mode)) + "_" + all_faults()[info.param.fault].name;
}
INSTANTIATE_TEST_SUITE_P(Faults, AtEveryPlace, ::testing::ValuesIn(all_places()), place_name);

struct Kind {
  Mode mode;
  Layout layout;
  bool registered;
};

class OfEveryKind : public ::testing::TestWithParam<Kind> {
 protected:
  static Terms terms() { return {4, GetParam().mode, GetParam().layout, GetParam().registered}; }
};

// Its lanes and stages are then full of rows that were right once.
TEST_P(OfEveryKind, KilledAfterFiftyGoodRounds) {
  Scene scene;
  scene.terms = terms();
  scene.victims = {{2, fault_named("CombineBeforeSecondPublish")}};
  scene.rounds_before = 50;
  scene.rounds_after = 12;
  const std::vector<std::string> wrong = unexpected(run_killed(scene), scene);
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

TEST_P(OfEveryKind, ThawedDoesNoHarm) {
  Scene scene;
  scene.terms = terms();
  scene.victims = {{1, fault_named("BetweenDispatchAndCombine")}};
  scene.rounds_after = 100;
  const support::RunResult result = run_frozen(scene);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

TEST_P(OfEveryKind, TwoOfFourKilled) {
  Scene scene;
  scene.terms = terms();
  scene.victims = {{3, fault_named("BeforeSecondPublish")},
                   {0, fault_named("CombineAfterFirstPublish")}};
  const std::vector<std::string> wrong = unexpected(run_killed(scene), scene);
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

std::string kind_name(const ::testing::TestParamInfo<Kind>& info) {
  return std::string(to_string(info.param.mode)) + "_" + std::string(to_string(info.param.layout)) +
         (info.param.registered ? "_registered" : "");
}
INSTANTIATE_TEST_SUITE_P(Faults, OfEveryKind,
                         ::testing::Values(Kind{Mode::latency, Layout::expert_slab, false},
                                           Kind{Mode::latency, Layout::expert_major, true},
                                           Kind{Mode::latency, Layout::rank_major, false},
                                           Kind{Mode::throughput, Layout::expert_slab, false},
                                           Kind{Mode::throughput, Layout::expert_major, true},
                                           Kind{Mode::throughput, Layout::rank_major, true}),
                         kind_name);

// Nobody but the victim is left to answer for the survivors' experts: three ranks, one left.
TEST(Faults, OneOfThreeIsLeft) {
  Scene scene;
  scene.terms = {3, Mode::latency, Layout::expert_major, false};
  scene.victims = {{0, fault_named("BeforePayload")}, {2, fault_named("BeforePayload")}};
  const std::vector<std::string> wrong = unexpected(run_killed(scene), scene);
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

}  // namespace
}  // namespace sluice::faults
