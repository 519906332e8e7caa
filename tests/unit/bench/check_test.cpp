// SPDX-License-Identifier: MIT
#include "check.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "codec/row_kernels.hpp"

namespace sluice::bench {
namespace {

/// The benchmark's own verdict must see every kind of damage: rows delivered right count as right,
/// and each change of one value is counted.
class CheckedRows : public testing::TestWithParam<Layout> {
 protected:
  CheckedRows() : workload_(make_case()), space_(RowSpace::of_layout(workload_)) {
    const Case& c = workload_.bench_case;
    const std::size_t rows = static_cast<std::size_t>(layout_rows(c, kRank));
    rows_.resize(rows * codec::row_bytes(c.dispatch_codec, c.hidden));
    scales_.resize(rows * codec::scale_bytes(c.dispatch_codec, c.hidden));
    poison_rows(workload_, space_, kSet, kRank, view());
  }

  static Case make_case() {
    Case bench_case;
    bench_case.ranks = 2;
    bench_case.tokens = 5;
    bench_case.hidden = 256;
    bench_case.top_k = 3;
    bench_case.experts = 9;
    bench_case.sets = 2;
    bench_case.layout = GetParam();
    return bench_case;
  }

  RowsView view() {
    const Case& c = workload_.bench_case;
    return {rows_.data(), codec::row_bytes(c.dispatch_codec, c.hidden), scales_.data(),
            codec::scale_bytes(c.dispatch_codec, c.hidden)};
  }

  void deliver() {
    const Case& c = workload_.bench_case;
    const RowsView to = view();
    for (int source = 0; source < c.ranks; ++source) {
      for (int route = 0; route < c.tokens * c.top_k; ++route) {
        const std::size_t at = workload_.route_at(source) + static_cast<std::size_t>(route);
        if (c.rank_of_expert(workload_.routings[kSet].ids[at]) != kRank) continue;
        const std::size_t row = static_cast<std::size_t>(space_.placement(kSet).row[at]);
        codec::portable_kernels().quantise(
            x_row(workload_, kSet, source, route / c.top_k), DType::bf16, c.dispatch_codec,
            c.hidden, reinterpret_cast<std::uint8_t*>(to.rows + row * to.row_stride),
            to.scales + row * to.scale_stride);
        last_row_ = row;
      }
    }
  }

  std::int64_t wrong() { return count_wrong_rows(workload_, space_, kSet, kRank, view()); }

  static constexpr int kRank = 1;
  static constexpr int kSet = 1;
  Workload workload_;
  RowSpace space_;
  std::vector<std::byte> rows_, scales_;
  std::size_t last_row_ = 0;
};

TEST_P(CheckedRows, SeesEveryDifference) {
  EXPECT_GT(wrong(), 0) << "poison passed for data";
  deliver();
  EXPECT_EQ(wrong(), 0);
  const RowsView at = view();
  at.rows[last_row_ * at.row_stride + 7] ^= std::byte{1};
  EXPECT_EQ(wrong(), 1);
  at.scales[last_row_ * at.scale_stride] ^= std::byte{1};
  EXPECT_EQ(wrong(), 2);
}

TEST_P(CheckedRows, SeesWritesBeyondTheRows) {
  deliver();
  const Case& c = workload_.bench_case;
  std::int64_t end = 0;
  for_each_segment(c, space_.placement(kSet), kRank,
                   [&](std::int64_t first, std::int64_t count) { end = first + count; });
  ASSERT_LT(end, layout_rows(c, kRank));
  rows_[static_cast<std::size_t>(end) * view().row_stride] = std::byte{0};
  EXPECT_EQ(wrong(), 1);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CheckedRows,
                         testing::Values(Layout::rank_major, Layout::expert_major,
                                         Layout::expert_slab));

TEST(CheckedOutput, SeesEveryDifference) {
  Case bench_case;
  bench_case.ranks = 2;
  bench_case.tokens = 3;
  bench_case.hidden = 32;
  bench_case.top_k = 1;
  bench_case.experts = 4;
  bench_case.layout = Layout::expert_major;
  const Workload workload(bench_case);
  const RowSpace space = RowSpace::of_layout(workload);
  std::vector<std::uint16_t> out(3 * 32);
  std::byte* bytes = reinterpret_cast<std::byte*>(out.data());
  poison_output(workload, bytes);
  EXPECT_GT(count_wrong_output(workload, space, 0, 0, SumOrder::rank, bytes), 0);
  // With one route of weight 1 the output is the expert's row.
  for (int token = 0; token < 3; ++token) {
    ASSERT_EQ(workload.weights(0, 0)[token], 1.0F);
    std::memcpy(out.data() + token * 32, space.y(0, 0, token, 0), 64);
  }
  EXPECT_EQ(count_wrong_output(workload, space, 0, 0, SumOrder::rank, bytes), 0);
  EXPECT_EQ(count_wrong_output(workload, space, 0, 0, SumOrder::single, bytes), 0);
  out[40] ^= 1;
  EXPECT_EQ(count_wrong_output(workload, space, 0, 0, SumOrder::rank, bytes), 1);
}

}  // namespace
}  // namespace sluice::bench
