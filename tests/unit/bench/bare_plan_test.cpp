// SPDX-License-Identifier: MIT
#include "bare_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "shuttle.hpp"

namespace sluice::bench {
namespace {

using Piece = BarePlan::Piece;
constexpr std::uint64_t kUnit = Shuttle::kUnit;

/// The plans of all ranks, of bytes drawn at random: a third of the pairs puts nothing.
class BarePlans : public testing::TestWithParam<
                      std::tuple<int, int, std::uint64_t>> {  // ranks, pieces, their most bytes
 protected:
  BarePlans() : bytes_(static_cast<std::size_t>(ranks() * ranks())) {
    std::mt19937_64 random(static_cast<std::uint64_t>(ranks() * 8 + pieces()));
    for (std::uint64_t& bytes : bytes_) {
      bytes = random() % 3 == 0 ? 0 : random() % 3000;
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      plans_.push_back(BarePlan::of(
          ranks(), rank, [this](int from, int to) { return bytes(from, to); }, pieces(), most()));
    }
  }
  static int ranks() { return std::get<0>(GetParam()); }
  static int pieces() { return std::get<1>(GetParam()); }
  static std::uint64_t most() { return std::get<2>(GetParam()); }
  std::uint64_t bytes(int from, int to) const {
    return bytes_[static_cast<std::size_t>(from * ranks() + to)];
  }
  const BarePlan& plan(int rank) const { return plans_[static_cast<std::size_t>(rank)]; }

  std::vector<std::uint64_t> bytes_;
  std::vector<BarePlan> plans_;
};

/// That pieces lie side by side, and fill so many bytes.
void expect_fills(std::vector<Piece> pieces, std::uint64_t bytes) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
  std::uint64_t end = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.offset, end);
    EXPECT_GT(piece.bytes, 0U);
    EXPECT_EQ(piece.bytes % kUnit, 0U);
    end += piece.bytes;
  }
  EXPECT_EQ(end, bytes);
}

TEST_P(BarePlans, FillWhatGoesOutAndWhatComesIn) {
  for (int rank = 0; rank < ranks(); ++rank) {
    SCOPED_TRACE(rank);
    expect_fills(plan(rank).out, plan(rank).out_bytes);
    expect_fills(plan(rank).in, plan(rank).in_bytes);
    for (std::size_t i = 0; i < plan(rank).in.size(); ++i) {
      EXPECT_EQ(plan(rank).in[i].number, static_cast<int>(i));
    }
  }
}

TEST_P(BarePlans, AgreeOnEveryPiece) {
  std::size_t out = 0;
  std::size_t in = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    in += plan(rank).in.size();
    for (const Piece& put : plan(rank).out) {
      ++out;
      ASSERT_LT(static_cast<std::size_t>(put.number), plan(put.peer).in.size());
      const Piece& got = plan(put.peer).in[static_cast<std::size_t>(put.number)];
      EXPECT_EQ(got.peer, rank);
      EXPECT_EQ(got.bytes, put.bytes);
      EXPECT_EQ(got.offset, put.opposite);
      EXPECT_EQ(got.opposite, put.offset);
    }
  }
  EXPECT_EQ(out, in);
}

TEST_P(BarePlans, HaveAllBytesInAsManyPieces) {
  for (int rank = 0; rank < ranks(); ++rank) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank) continue;
      std::uint64_t put = 0;
      int count = 0;
      for (const Piece& piece : plan(rank).out) {
        if (piece.peer != peer) continue;
        put += piece.bytes;
        ++count;
        EXPECT_LE(piece.bytes, most());
      }
      // A unit answers what is put the other way alone.
      std::uint64_t expected = (bytes(rank, peer) + kUnit - 1) / kUnit * kUnit;
      if (expected == 0 && bytes(peer, rank) > 0) expected = kUnit;
      EXPECT_EQ(put, expected) << rank << " to " << peer;
      if (most() < 3000) continue;
      EXPECT_LE(count, pieces());
      if (expected >= kUnit * 64) {
        EXPECT_EQ(count, pieces());
      }
    }
  }
}

TEST_P(BarePlans, BeginWithTheFirstPieceOfEveryPeer) {
  for (int rank = 0; rank < ranks(); ++rank) {
    std::vector<bool> seen(static_cast<std::size_t>(ranks()));
    const auto& out = plan(rank).out;
    const std::size_t first = std::min<std::size_t>(
        out.size(),
        static_cast<std::size_t>(std::count_if(out.begin(), out.end(), [&](const Piece& piece) {
          return std::none_of(out.begin(), out.end(), [&](const Piece& other) {
            return other.peer == piece.peer && other.offset < piece.offset;
          });
        })));
    for (std::size_t i = 0; i < first; ++i) {
      const auto peer = static_cast<std::size_t>(out[i].peer);
      EXPECT_FALSE(seen[peer]);
      seen[peer] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, BarePlans,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::Values(1, 2, 4),
                                          testing::Values(1 << 20, 100)));

}  // namespace
}  // namespace sluice::bench
