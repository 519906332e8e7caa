// SPDX-License-Identifier: MIT
//
// Regions of a window of packets never overlap, lie inside it and are aligned for what is stored
// there, by brute force over every address that the engine asks for; and tags.
#include "window/packet_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sluice/limits.hpp"
#include "support/sanitizers.hpp"

namespace sluice::window {
namespace {

struct Region {
  std::size_t begin;
  std::size_t bytes;
};

std::vector<Region> regions_of(const PacketLayout& layout) {
  const PacketShape& shape = layout.shape();
  std::vector<Region> all;
  std::size_t lane = 0;
  const auto add = [&](std::size_t begin, std::size_t bytes) {
    all.push_back({lane + begin, bytes});
  };
  const std::size_t weights = static_cast<std::size_t>(layout.weight_packets()) * kPacketBytes;
  for (int peer = 0; peer < shape.ranks; ++peer) {
    lane = layout.lane(peer);
    add(layout.told(protocol::Kind::dispatch), 8);
    add(layout.told(protocol::Kind::dispatch) + layout.accusation(), 8);
    add(layout.told(protocol::Kind::combine), 8);
    for (int bank = 0; bank < shape.banks; ++bank) {
      for (int kind = 0; kind < protocol::kCellKinds; ++kind) {
        add(layout.cell(static_cast<protocol::CellKind>(kind), bank),
            static_cast<std::size_t>(cell_packets(shape.cell_tokens)) * kPacketBytes);
      }
      for (int expert = 0; expert < shape.local_experts; ++expert) {
        add(layout.count(bank, expert), 8);
      }
      for (int slot = 0; slot < shape.tokens; ++slot) {
        for (int k = 0; k < shape.top_k; ++k) add(layout.route(bank, slot, k), kPacketBytes);
        if (shape.stages == 0) add(layout.dispatch_row(bank, slot), shape.dispatch_row_bytes);
        if (shape.stages > 0) add(layout.staged_word(bank, slot), sizeof(std::uint32_t));
        add(layout.weight(bank, slot), weights);
        add(layout.answer(bank, slot), kPacketBytes);
        add(layout.row_weight(bank, slot), weights);
      }
      for (int part = 0; shape.stages > 0 && part < kStagedParts; ++part) {
        add(layout.staged_part(bank, part), sizeof(std::uint32_t));
      }
      for (int slot = 0; slot < shape.tokens * shape.combine_rows_per_token; ++slot) {
        add(layout.combine_row(bank, slot), shape.combine_row_bytes);
      }
    }
  }
  lane = 0;
  for (int bank = 0; bank < shape.stages; ++bank) {
    for (int token = 0; token < shape.tokens; ++token) {
      add(layout.staged_row(bank, token), shape.dispatch_row_bytes);
      for (int place = 0; place < shape.served; ++place) {
        add(layout.landings(place) + layout.staged_offset(bank, token), shape.dispatch_row_bytes);
      }
    }
  }
  return all;
}

std::vector<PacketShape> shapes() {
  std::vector<PacketShape> all;
  for (const int ranks : {1, 2, 5}) {
    for (const int top_k : {1, 3, 32}) {
      for (const int banks : {3, 9}) {
        for (const int tokens : {1, 7, 33}) {
          for (const int experts : {1, 6}) {
            if (testing::kSanitized && (experts == 1) != (banks == 3)) continue;
            for (const int rows_per_token : {1, 3}) {
              for (const std::size_t row : {std::size_t{48}, std::size_t{1040}}) {
                const PacketShape latency{ranks,          top_k, banks,    tokens, experts,
                                          rows_per_token, row,   row + 96, tokens, 0};
                all.push_back(latency);
                all.push_back(latency);
                all.back().cell_tokens = 0;
                all.back().stages = banks;
                all.back().served = ranks / 2;
              }
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(PacketLayout, RegionsAreApartInsideAndAligned) {
  for (const PacketShape& shape : shapes()) {
    const PacketLayout layout(shape);
    ASSERT_TRUE(layout.valid());
    std::vector<Region> regions = regions_of(layout);
    std::sort(regions.begin(), regions.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    std::size_t end = 0;
    for (const Region& region : regions) {
      ASSERT_GE(region.begin, end);
      ASSERT_EQ(region.begin % std::min<std::size_t>(region.bytes, kPacketBytes), 0U);
      end = region.begin + region.bytes;
    }
    EXPECT_LE(end, layout.bytes());
  }
}

TEST(PacketLayout, ALaneBeyond32BitsIsNotValid) {
  PacketShape shape{16, 8, 9, 512, 64, 32, 65536, 65536, 512, 0};
  EXPECT_FALSE(PacketLayout(shape).valid());
  shape.combine_rows_per_token = 1;
  EXPECT_TRUE(PacketLayout(shape).valid());
}

TEST(PacketLayout, CellsHaveABitForEveryToken) {
  EXPECT_EQ(cell_packets(1), 2);
  EXPECT_EQ(cell_packets(32), 2);
  EXPECT_EQ(cell_packets(33), 3);
  EXPECT_EQ(cell_packets(128), 3);
  EXPECT_EQ(cell_packets(129), 4);
  EXPECT_EQ(cell_packets(512), 7);
  EXPECT_EQ(bit_packet(31), 0);
  EXPECT_EQ(bit_packet(32), 2);
  EXPECT_EQ(bit_packet(127), 2);
  EXPECT_EQ(bit_packet(128), 3);
}

TEST(StagedPartsTest, EveryTokenIsInOneOfThem) {
  for (const int tokens : {0, 1, 15, 16, 17, 32, 33, 1000, 4096, 4097, kMaxTokens}) {
    const StagedParts parts(tokens);
    EXPECT_EQ(parts.first(0), 0);
    EXPECT_EQ(parts.first(kStagedParts), tokens);
    for (int part = 0; part < kStagedParts; ++part) {
      const int begin = parts.first(part);
      const int end = parts.first(part + 1);
      ASSERT_LE(begin, end);
      if (begin == end) continue;
      EXPECT_EQ(parts.part_of(begin), part) << tokens;
      EXPECT_EQ(parts.part_of(end - 1), part) << tokens;
    }
  }
}

TEST(PacketLayout, ScalePacketsOfAUnit) {
  EXPECT_EQ(scale_packets_per_unit(128, 4), 1);
  EXPECT_EQ(scale_packets_per_unit(256, 4), 1);
  EXPECT_EQ(scale_packets_per_unit(64, 4), 2);
  EXPECT_EQ(scale_packets_per_unit(32, 4), 4);
  EXPECT_EQ(scale_packets_per_unit(32, 1), 1);
}

TEST(PacketLayout, TagsDifferFromUnwrittenMemoryAndFromTheirNeighbours) {
  for (const std::uint64_t about :
       {std::uint64_t{20}, std::uint64_t{1} << 30, std::uint64_t{1} << 31, std::uint64_t{1} << 32,
        std::uint64_t{1} << 40}) {
    for (std::uint64_t epoch = about - 20; epoch < about + 20; ++epoch) {
      EXPECT_NE(tag_of(epoch), kPoison) << epoch;
      EXPECT_NE(tag_of(epoch), 0U) << epoch;
      EXPECT_NE(tag_of(epoch), tag_of(epoch + 1)) << epoch;
    }
  }
}

}  // namespace
}  // namespace sluice::window
