// SPDX-License-Identifier: MIT
// The reference against small cases worked out by hand, before anything is compared with it.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include "reference/small_float.hpp"

namespace sluice::reference {
namespace {

std::vector<std::byte> elements(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) store(dtype, bytes.data(), i, values[i]);
  return bytes;
}

// Two ranks, three experts (0 and 1 on rank 0, 2 on rank 1), two tokens of rank 0, one of rank 1.
DispatchProblem small_problem(Layout layout) {
  DispatchProblem problem;
  problem.ranks = 2;
  problem.experts = 3;
  problem.top_k = 3;
  problem.hidden = 1;
  problem.max_tokens = 2;
  problem.layout = layout;
  problem.codec.kind = CodecKind::f32;
  RankInput first;
  first.tokens = 2;
  first.x_dtype = DType::f32;
  first.x = elements(DType::f32, {10.0F, 11.0F});
  first.topk_ids = {1, 2, 1, -1, 0, 7};
  first.topk_weights = {0.5F, 0.25F, 0.125F, 9.0F, 2.0F, 9.0F};
  RankInput second;
  second.tokens = 1;
  second.x_dtype = DType::f32;
  second.x = elements(DType::f32, {20.0F});
  second.topk_ids = {2, 0, 1};
  second.topk_weights = {1.0F, 2.0F, 4.0F};
  problem.inputs = {first, second};
  return problem;
}

TEST(ReferenceDispatch, ExpertMajorByHand) {
  DispatchProblem problem = small_problem(Layout::expert_major);
  problem.expert_alignment = 4;
  const Dispatched all = dispatch(problem);
  EXPECT_EQ(all.expert_to_rank, (std::vector<std::int32_t>{0, 0, 1}));
  EXPECT_EQ(all.routes[0].bad_routes, 1);
  EXPECT_EQ(all.routes[0].ids, (std::vector<std::int32_t>{1, 2, 1, -1, 0, -1}));
  const RankRows& rank0 = all.ranks[0];
  EXPECT_EQ(rank0.counts, (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(rank0.aligned_counts, (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(rank0.offsets, (std::vector<std::int64_t>{0, 4, 8}));
  ASSERT_EQ(rank0.rows.size(), 4U);
  EXPECT_EQ(rank0.rows[1].number, 1);
  EXPECT_EQ(rank0.rows[1].source, 1);
  EXPECT_EQ(rank0.rows[2].number, 4);
  EXPECT_EQ(rank0.rows[2].k, 0);
  EXPECT_EQ(rank0.route_rows, (std::vector<std::int32_t>{4, -1, -2, -1, 0, -1, -1, 1, 5}));
  EXPECT_EQ(rank0.local_ids, (std::vector<std::int32_t>{1, -1, 1, -1, 0, -1, -1, 0, 1}));
  EXPECT_EQ(rank0.local_weights, (std::vector<float>{0.5F, 0, 0.125F, 0, 2.0F, 0, 0, 2.0F, 4.0F}));
  EXPECT_EQ(rank0.source_offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(rank0.source_segments[1].first_row, 1);
  EXPECT_EQ(rank0.source_segments[1].count, 1);
  EXPECT_EQ(load(DType::f32, all.payload(rank0.rows[3]).elements.data(), 0), 20.0F);
}

TEST(ReferenceDispatch, CapacityAndSlab) {
  DispatchProblem problem = small_problem(Layout::expert_major);
  problem.capacity = 3;
  Dispatched all = dispatch(problem);
  EXPECT_EQ(all.ranks[0].overflow_rows, 1);
  EXPECT_EQ(all.ranks[0].counts, (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(all.ranks[0].route_rows, (std::vector<std::int32_t>{2, -1, -2, -1, 0, -1, -1, 1, -3}));
  problem.layout = Layout::expert_slab;
  problem.capacity = 1;
  all = dispatch(problem);
  EXPECT_EQ(all.ranks[0].overflow_rows, 2);
  EXPECT_EQ(all.ranks[0].offsets, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(all.ranks[0].rows[2].number, 1);
  problem.capacity = 0;
  EXPECT_EQ(dispatch(problem).ranks[0].offsets, (std::vector<std::int64_t>{0, 4, 8}));
}

TEST(ReferenceDispatch, MasksAndRankMajor) {
  DispatchProblem problem = small_problem(Layout::rank_major);
  problem.inputs[0].mask = {1, 0};  // the token with the bad id is skipped: nothing bad is seen
  problem.inputs[1].mask = {0, 1, 1};
  const Dispatched all = dispatch(problem);
  EXPECT_EQ(all.routes[0].bad_routes, 0);
  EXPECT_EQ(all.ranks[0].records(), 2);
  EXPECT_EQ(all.ranks[1].records(), 1);
  EXPECT_EQ(all.ranks[1].record_rank, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(all.ranks[0].route_rows, (std::vector<std::int32_t>{0, -1, 0, -1, 1, 1}));
}

CombineProblem small_combine(const Dispatched& all) {
  CombineProblem problem;
  problem.y_dtype = DType::f32;
  problem.codec = CodecKind::f32;
  problem.inputs.resize(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<float> y;
    for (std::size_t row = 0; row < all.ranks[rank].rows.size(); ++row) {
      y.push_back(static_cast<float>(100 * (rank + 1) + row));
    }
    problem.inputs[rank].y = elements(DType::f32, y);
    problem.inputs[rank].out_dtype = DType::f32;
  }
  return problem;
}

TEST(ReferenceCombine, ByHand) {
  const DispatchProblem problem = small_problem(Layout::expert_major);
  const Dispatched all = dispatch(problem);
  CombineProblem combine_problem = small_combine(all);
  std::vector<Combined> homes = combine(problem, all, combine_problem);
  // Token 0: expert 1 (row 2 of rank 0, weights 0.5 + 0.125), expert 2 (row 0 of rank 1, 0.25).
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 0), 0.625F * 102.0F + 0.25F * 200.0F);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 1), 2.0F * 100.0F);
  EXPECT_EQ(homes[0].surviving_weight, (std::vector<float>{0.875F, 2.0F}));
  EXPECT_EQ(homes[0].lost_routes, 0);
  combine_problem.plain_sum = true;
  homes = combine(problem, all, combine_problem);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 0), 302.0F);
  EXPECT_EQ(load(DType::f32, homes[1].out.data(), 0), 201.0F + 101.0F + 103.0F);
}

TEST(ReferenceCombine, LossIsRenormalised) {
  const DispatchProblem problem = small_problem(Layout::expert_major);
  const Dispatched all = dispatch(problem);
  CombineProblem combine_problem = small_combine(all);
  combine_problem.lost_ranks = {true, false};
  combine_problem.inputs[0].biases = {{DType::f32, elements(DType::f32, {1.0F, 2.0F})}};
  const std::vector<Combined> homes = combine(problem, all, combine_problem);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 0), 50.0F * (0.875F / 0.25F) + 1.0F);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 1), 2.0F);
  EXPECT_EQ(homes[0].lost_routes, 3);
  EXPECT_EQ(homes[0].surviving_weight, (std::vector<float>{0.25F, 0.0F}));
}

TEST(ReferenceCombine, OrderOfRoundings) {
  // The partial sum of a rank is rounded once to bf16, in `single` each result is.
  DispatchProblem problem;
  problem.ranks = 2;
  problem.experts = 2;
  problem.top_k = 2;
  problem.hidden = 1;
  problem.max_tokens = 1;
  problem.expert_to_rank = {1, 1};
  RankInput input;
  input.tokens = 1;
  input.x_dtype = DType::f32;
  input.x = elements(DType::f32, {1.0F});
  input.topk_ids = {0, 1};
  problem.inputs = {input, RankInput{}};
  const Dispatched all = dispatch(problem);
  CombineProblem combine_problem;
  combine_problem.y_dtype = DType::f32;
  combine_problem.inputs.resize(2);
  combine_problem.inputs[0].out_dtype = DType::f32;
  const float tie = 1.0F / 256.0F;  // 1 + 1/256 is a tie of bf16
  combine_problem.inputs[1].y = elements(DType::f32, {1.0F + tie, 1.0F + tie});
  EXPECT_EQ(load(DType::f32, combine(problem, all, combine_problem)[0].out.data(), 0),
            2.0F + 2.0F * tie - 2.0F * tie);
  combine_problem.inputs[1].y = elements(DType::f32, {1.0F + tie, 1.0F + 3.0F * tie});
  EXPECT_EQ(load(DType::f32, combine(problem, all, combine_problem)[0].out.data(), 0),
            2.0F + 4.0F * tie);
  combine_problem.reduce = Reduce::single;
  EXPECT_EQ(load(DType::f32, combine(problem, all, combine_problem)[0].out.data(), 0),
            1.0F + 1.0F + 4.0F * tie);
  combine_problem.inputs[1].y = elements(DType::f32, {1.0F + 3.0F * tie, 1.0F + 3.0F * tie});
  EXPECT_EQ(load(DType::f32, combine(problem, all, combine_problem)[0].out.data(), 0),
            2.0F + 8.0F * tie);
  combine_problem.reduce = Reduce::rank;
  EXPECT_EQ(load(DType::f32, combine(problem, all, combine_problem)[0].out.data(), 0),
            through(DType::bf16, 2.0F + 6.0F * tie));
}

TEST(ReferenceCombine, RankMajorAndWeightsHome) {
  const DispatchProblem problem = small_problem(Layout::rank_major);
  const Dispatched all = dispatch(problem);
  CombineProblem combine_problem = small_combine(all);
  combine_problem.inputs[0].row_weights = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  combine_problem.inputs[1].row_weights = {11, 12, 13, 14, 15, 16};
  const std::vector<Combined> homes = combine(problem, all, combine_problem);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 0), 300.0F);
  EXPECT_EQ(load(DType::f32, homes[0].out.data(), 1), 101.0F);
  EXPECT_EQ(homes[0].weights_home, (std::vector<float>{1, 12, 3, 0, 5, 0}));
  EXPECT_EQ(homes[1].weights_home, (std::vector<float>{14, 8, 9}));
}

}  // namespace
}  // namespace sluice::reference
