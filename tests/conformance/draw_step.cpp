// SPDX-License-Identifier: MIT
#include "conformance/draw_step.hpp"

#include <array>

namespace sluice::conformance {

namespace {

template <typename T, std::size_t N>
T pick(support::Random& random, const std::array<T, N>& choices) {
  return choices[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(N)))];
}

DType pick_float(support::Random& random) {
  return pick(random, std::array{DType::bf16, DType::f16, DType::f32});
}

void draw_routing(StepSpec& spec, support::Random& random) {
  using support::RoutingKind;
  using support::TokensKind;
  spec.routing =
      pick(random, std::array{RoutingKind::distinct, RoutingKind::duplicates, RoutingKind::zipf,
                              RoutingKind::hot, RoutingKind::only_hot, RoutingKind::sparse,
                              RoutingKind::distinct, RoutingKind::none});
  spec.tokens = pick(random, std::array{TokensKind::full, TokensKind::varied, TokensKind::varied,
                                        TokensKind::some_zero, TokensKind::one_rank,
                                        TokensKind::all_zero, TokensKind::full});
  spec.mask = pick(random, std::array{support::MaskKind::none, support::MaskKind::none,
                                      support::MaskKind::token, support::MaskKind::route});
  spec.bad_percent = random.chance(25) ? 15 : 0;
  spec.data = random.chance(40) ? support::DataKind::specials : support::DataKind::ordinary;
  spec.x_dtype = pick_float(random);
  spec.ids_dtype = random.chance(50) ? DType::i32 : DType::i64;
}

void draw_buffers(StepSpec& spec, support::Random& random) {
  spec.input_gap = random.chance(40) ? static_cast<int>(1 + random.below(20)) : 0;
  spec.output_gap = random.chance(40) ? static_cast<int>(1 + random.below(20)) : 0;
  spec.rows_from =
      pick(random, std::array{RowsFrom::library, RowsFrom::caller, RowsFrom::allocator});
  spec.spare_rows = random.chance(40) ? 1 + random.below(5) : 0;
  spec.token_contiguous_scales = random.chance(40);
  spec.zero_padding = random.chance(40);
  spec.caller_handle = random.chance(40);
  spec.registered_x = random.chance(40);
  spec.registered_y = random.chance(40);
  spec.row_counts = random.chance(40);
  spec.encoded_x =
      pick(random, std::array{EncodedX::no, EncodedX::no, EncodedX::apart, EncodedX::one_record});
}

}  // namespace

StepSpec draw_step(const Scenario& scenario, support::Random& random) {
  const Layout layout = scenario.options.layout;
  StepSpec spec;
  draw_routing(spec, random);
  draw_buffers(spec, random);
  spec.flow = pick(random, std::array{Flow::whole, Flow::halves, Flow::plan_then_move});
  spec.cached = static_cast<int>(random.below(3));
  spec.combines = static_cast<int>(1 + random.below(2));
  spec.expert_alignment = pick(random, std::array<std::int64_t, 4>{1, 1, 4, 16});
  const bool rank_major = layout == Layout::rank_major;
  spec.row_weights = rank_major && random.chance(50);
  if (random.chance(30) && !spec.row_weights) {
    spec.capacity = 1 + random.below(2 * std::int64_t{scenario.shape.max_tokens});
  }
  spec.weights_at_dispatch = random.chance(70);
  spec.weights_at_combine = !rank_major && random.chance(40);
  spec.plain_sum = !rank_major && random.chance(25);
  spec.y_dtype = pick_float(random);
  spec.out_dtype = pick_float(random);
  if (random.chance(50)) {
    spec.combine_codec = pick(random, std::array{CodecKind::bf16, CodecKind::f16, CodecKind::f32});
  }
  spec.shared_results = static_cast<int>(random.chance(40) ? 1 + random.below(2) : 0);
  spec.biases = static_cast<int>(random.chance(40) ? 1 + random.below(2) : 0);
  spec.renormalize = random.chance(75);
  return spec;
}

Scenario drawn_scenario(std::uint64_t seed, int steps) {
  support::Random random = support::Random::of(seed, 11);
  Scenario scenario;
  scenario.seed = seed;
  scenario.ranks = 4;
  scenario.shape.experts = pick(random, std::array{8, 7, 13, 6});
  scenario.shape.top_k = pick(random, std::array{4, 3, 2, 6});
  scenario.shape.hidden = pick(random, std::array{16, 48, 128, 144, 272});
  scenario.shape.max_tokens = pick(random, std::array{5, 8, 13});
  // The largest combine record, so that every step may choose its own codec.
  scenario.options.combine_codec = CodecKind::f32;
  scenario.options.deadline = std::chrono::seconds(40);
  scenario.options.first_deadline = std::chrono::seconds(40);
  scenario.options.registered_bytes = registered_bytes(scenario);
  scenario.steps.resize(static_cast<std::size_t>(steps));
  return scenario;
}

}  // namespace sluice::conformance
