// SPDX-License-Identifier: MIT
//
// Ranks on GPUs that die or freeze between the halves of a round: kernels of the others stop waiting,
// their calls end, reports name the lost rank, and nothing of it is left in later sums. (What a kernel
// does while its process is killed cannot be told from here.)
#include <gtest/gtest.h>

#include "faults/leaver.hpp"
#include "faults/scene.hpp"
#include "support/gpu_main.hpp"
#include "support/gpu_place.hpp"

namespace sluice::faults {

support::RankBody in_its_place(support::RankBody body) {
  return [body = std::move(body)](World& world, support::Findings& findings) {
    const std::unique_ptr<support::Place> place =
        support::gpu_place(world.rank(), std::chrono::seconds(20));
    support::set_place(place.get());
    body(world, findings);
    support::set_place(nullptr);
  };
}

namespace {

std::vector<Fault> faults_between_halves() {
  std::vector<Fault> between;
  for (const Fault& fault : all_faults()) {
    if (!fault.inside) between.push_back(fault);
  }
  return between;
}

/// How rows travel.
enum class How : std::uint8_t { latency, throughput, in_place };

struct Where {
  Layout layout;
  std::size_t fault;
  How how;
};

std::vector<Where> everywhere() {
  constexpr Layout kLayouts[] = {Layout::expert_slab, Layout::expert_major, Layout::rank_major};
  std::vector<Where> all;
  const std::size_t count = faults_between_halves().size();
  for (const How how : {How::latency, How::throughput, How::in_place}) {
    for (std::size_t fault = 0; fault < count; ++fault) {
      // In place: what peers pull of combine is rank_major.
      const std::size_t layout = how == How::in_place ? 2 : fault % 3;
      all.push_back({kLayouts[layout], fault, how});
    }
  }
  return all;
}

class OnGpus : public ::testing::TestWithParam<Where> {
 protected:
  static Scene scene() {
    Scene scene;
    scene.terms.layout = GetParam().layout;
    if (GetParam().how != How::latency) scene.terms.mode = Mode::throughput;
    scene.terms.registered = GetParam().how == How::in_place;
    const std::vector<Fault> faults = faults_between_halves();
    scene.victims = {{static_cast<int>(GetParam().fault % 4), faults[GetParam().fault]}};
    return scene;
  }
};

TEST_P(OnGpus, Killed) {
  const std::vector<std::string> wrong = unexpected(run_killed(scene()), scene());
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

TEST_P(OnGpus, Frozen) {
  const support::RunResult result = run_frozen(scene());
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

TEST_P(OnGpus, KilledAfterFiftyGoodRounds) {
  Scene late = scene();
  late.rounds_before = 50;
  const std::vector<std::string> wrong = unexpected(run_killed(late), late);
  EXPECT_TRUE(wrong.empty()) << lines(wrong);
}

class LifeOnGpus : public ::testing::TestWithParam<Mode> {};

TEST_P(LifeOnGpus, LeftIsMissingAtOnceAndNoError) {
  const Terms terms{4, GetParam(), Layout::expert_major, false};
  support::RunOptions options;
  options.leave = false;
  const support::RunResult result =
      support::run_as_processes(4, in_its_place([&](World& world, support::Findings& findings) {
                                  run_and_leave(terms, world, findings);
                                }),
                                options);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, LifeOnGpus, ::testing::Values(Mode::latency, Mode::throughput),
                         [](const ::testing::TestParamInfo<Mode>& mode) {
                           return mode.param == Mode::latency ? "latency" : "throughput";
                         });

std::string where_name(const ::testing::TestParamInfo<Where>& info) {
  constexpr const char* kHow[] = {"", "throughput_", "in_place_"};
  return kHow[static_cast<int>(info.param.how)] + std::string(to_string(info.param.layout)) + "_" +
         faults_between_halves()[info.param.fault].name;
}
INSTANTIATE_TEST_SUITE_P(Faults, OnGpus, ::testing::ValuesIn(everywhere()), where_name);

}  // namespace
}  // namespace sluice::faults

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count_before_forking);
}
