// SPDX-License-Identifier: MIT
// Every mode, layout, dispatch codec and order of sums, each with steps in which everything else
// is drawn anew: T, routing, data, dtypes, masks, buffers, halves, cached handles.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <tuple>

#include "conformance/draw_step.hpp"
#include "conformance/modes.hpp"

namespace sluice::conformance {
namespace {

using GridPoint = std::tuple<Mode, Layout, Codec, Reduce>;

std::string codec_name(const Codec& codec) {
  if (codec.kind != CodecKind::fp8) return std::string(to_string(codec.kind));
  return fmt::format("fp8_{}_{}", to_string(codec.scale_form), codec.group);
}

std::string point_name(const ::testing::TestParamInfo<GridPoint>& info) {
  const auto& [mode, layout, codec, reduce] = info.param;
  return fmt::format("{}_{}_{}_{}", to_string(mode), to_string(layout), codec_name(codec),
                     to_string(reduce));
}

// The same point has the same seed in every executable, whatever the order of the tests.
std::uint64_t seed_of(const GridPoint& point) {
  const auto& [mode, layout, codec, reduce] = point;
  return 1000U * static_cast<std::uint64_t>(mode) + 300U * static_cast<std::uint64_t>(layout) +
         20U * static_cast<std::uint64_t>(codec.kind) +
         5U * static_cast<std::uint64_t>(codec.scale_form) +
         100000U * static_cast<std::uint64_t>(codec.group) + static_cast<std::uint64_t>(reduce);
}

class Grid : public ::testing::TestWithParam<GridPoint> {};

TEST_P(Grid, DrawnSteps) {
  const auto& [mode, layout, codec, reduce] = GetParam();
  const std::uint64_t seed = seed_of(GetParam());
  Scenario scenario = drawn_scenario(seed, 12);
  scenario.options.mode = mode;
  scenario.options.layout = layout;
  scenario.options.dispatch_codec = codec;
  scenario.options.reduce = reduce;
  scenario.options.permit_single = reduce == Reduce::single;
  support::Random random = support::Random::of(seed, 12);
  if (random.chance(50)) scenario.options.y_memory = YMemory::registered;
  for (StepSpec& spec : scenario.steps) spec = draw_step(scenario, random);
  scenario.steps.back().delays = true;
  expect_clean(run(scenario));
}

const auto kCodecs = ::testing::Values(
    Codec{CodecKind::bf16}, Codec{CodecKind::f16}, Codec{CodecKind::f32},
    Codec{CodecKind::fp8, ScaleForm::f32, 128}, Codec{CodecKind::fp8, ScaleForm::pow2, 128},
    Codec{CodecKind::fp8, ScaleForm::ue8m0, 128}, Codec{CodecKind::fp8, ScaleForm::f32, 32},
    Codec{CodecKind::fp8, ScaleForm::ue8m0, 64}, Codec{CodecKind::fp8, ScaleForm::pow2, 256});

INSTANTIATE_TEST_SUITE_P(ByRank, Grid,
                         ::testing::Combine(both_modes(),
                                            ::testing::Values(Layout::rank_major,
                                                              Layout::expert_major,
                                                              Layout::expert_slab),
                                            kCodecs, ::testing::Values(Reduce::rank)),
                         point_name);
INSTANTIATE_TEST_SUITE_P(ByNode, Grid,
                         ::testing::Combine(both_modes(),
                                            ::testing::Values(Layout::rank_major,
                                                              Layout::expert_major,
                                                              Layout::expert_slab),
                                            kCodecs, ::testing::Values(Reduce::node)),
                         point_name);
// rank_major refuses `single`.
INSTANTIATE_TEST_SUITE_P(
    BySingle, Grid,
    ::testing::Combine(both_modes(), ::testing::Values(Layout::expert_major, Layout::expert_slab),
                       kCodecs, ::testing::Values(Reduce::single)),
    point_name);

}  // namespace
}  // namespace sluice::conformance
