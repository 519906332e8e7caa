// SPDX-License-Identifier: MIT
// Jobs on several nodes of which everything is drawn. (Other cases of the suite run on nodes too: see CMakeLists.txt.)
#include <fmt/core.h>

#include <array>
#include <cstdlib>

#include "conformance/draw_step.hpp"
#include "conformance/modes.hpp"
#include "conformance/nodes.hpp"

namespace sluice::conformance {
namespace {

constexpr Nodes kNodes[] = {
    {"2x1", 2, 1},    {"2x2", 4, 2},  {"3x2", 6, 2},  {"4x2", 8, 2},
    {"3plus1", 4, 3}, {"8x4", 32, 4}, {"8x8", 64, 8},
};
/// On these every token goes to eight experts of four nodes.
constexpr int kGroupedRanks = 64;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Everything about the job is drawn: kinds of steps, the order of sums, what may be in place.
Scenario drawn(const Nodes& nodes, std::uint64_t seed, int steps) {
  support::Random random = support::Random::of(seed, 31);
  Scenario scenario = drawn_scenario(seed, steps);
  scenario.ranks = nodes.ranks;
  scenario.shape.experts = nodes.ranks * 2 + static_cast<int>(random.below(3));
  scenario.shape.top_k = static_cast<int>(1 + random.below(8));
  const bool grouped = nodes.ranks == kGroupedRanks;
  if (grouped) {
    scenario.shape.experts = nodes.ranks * 2;
    scenario.shape.top_k = 8;
  }
  // Now and then more than a message holds.
  if (random.chance(20) && nodes.ranks <= 8) scenario.shape.max_tokens = 150;
  scenario.options.mode = random.chance(50) ? Mode::latency : Mode::throughput;
  constexpr std::array kLayouts{Layout::rank_major, Layout::expert_major, Layout::expert_slab};
  scenario.options.layout = kLayouts[static_cast<std::size_t>(random.below(3))];
  if (random.chance(60)) scenario.options.dispatch_codec = {CodecKind::fp8, ScaleForm::f32, 128};
  const bool single = scenario.options.layout != Layout::rank_major && random.chance(40);
  scenario.options.permit_single = single;
  if (random.chance(50)) scenario.options.y_memory = YMemory::registered;
  scenario.options.registered_bytes = registered_bytes(scenario);
  for (StepSpec& spec : scenario.steps) {
    spec = draw_step(scenario, random);
    if (grouped) spec.routing = support::RoutingKind::grouped;
    const std::int64_t turn = random.below(single ? 4 : 3);
    if (turn > 0)
      spec.reduce = std::array{Reduce::node, Reduce::rank,
                               Reduce::single}[static_cast<std::size_t>(turn - 1)];
    spec.delays = random.chance(10);
  }
  return scenario;
}

// SLUICE_TEST_SEEDS: how many networks and jobs.
TEST_P(OnNodes, DrawnJobs) {
  const Nodes& nodes = GetParam();
  const std::uint64_t count = number_of("SLUICE_TEST_SEEDS", nodes.ranks > 8 ? 2 : 12);
  const std::uint64_t first = number_of("SLUICE_TEST_FIRST_SEED", 1);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    place(nodes, seed);
    expect_clean(run(drawn(nodes, seed, nodes.ranks > 8 ? 2 : 5)), fmt::format("seed {}", seed));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, OnNodes, ::testing::ValuesIn(kNodes), OnNodes::name);

}  // namespace
}  // namespace sluice::conformance
