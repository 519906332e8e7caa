// SPDX-License-Identifier: MIT
//
// Regions of the relay's part of a window never overlap and lie inside it, by brute force over every
// address that engines and relays ask for; and slots of messages tell what they are.
#include "window/relay_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace sluice::window {
namespace {

struct Region {
  std::size_t begin;
  std::size_t bytes;
};

struct Case {
  WindowLayout window;
  routing::NodeMap nodes;
  int group_rows;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {3, 1}, {1, 1, 2}}) {
    for (const bool throughput : {false, true}) {
      for (const int group_rows : {1, 3, 64}) {
        const routing::NodeMap nodes = routing::NodeMap::of_sizes(sizes);
        WindowShape shape;
        shape.ranks = nodes.ranks();
        shape.top_k = 3;
        shape.banks = 3;
        shape.dispatch_stages = throughput ? 2 : 3;
        shape.combine_stages = throughput ? 2 : 0;
        shape.tokens = 7;
        shape.combine_rows_per_token = throughput ? 2 : 1;
        shape.dispatch_row_bytes = 100;
        shape.combine_row_bytes = 200;
        all.push_back({WindowLayout(shape), nodes, group_rows});
      }
    }
  }
  return all;
}

std::vector<Region> regions_of(const Case& c, const RelayLayout& layout, int rank) {
  const WindowShape& shape = c.window.shape();
  std::vector<Region> all;
  const auto add = [&](std::size_t begin, std::size_t bytes) { all.push_back({begin, bytes}); };
  const std::size_t tokens = static_cast<std::size_t>(shape.tokens);
  const std::size_t masks = static_cast<std::size_t>(c.window.combine_slots()) * 4;
  const std::size_t weights = tokens * static_cast<std::size_t>(shape.top_k) * 4;
  for (int kind = 0; kind < protocol::kCellKinds; ++kind) {
    add(layout.published(static_cast<protocol::CellKind>(kind)), 8);
  }
  for (const auto kind : {protocol::Kind::dispatch, protocol::Kind::combine}) {
    add(layout.flushed(kind), 8);
    add(layout.told(kind), 8);
  }
  add(layout.closed(), 8);
  add(layout.alive(), 8);
  add(layout.doorbell(), kLineBytes);
  const std::size_t head =
      layout.head_headers() + tokens * DispatchHeaderLayout::bytes(shape.top_k);
  for (int node = 0; node < c.nodes.nodes(); ++node) {
    if (node == c.nodes.node_of(rank)) continue;
    for (int bank = 0; bank < shape.banks; ++bank) {
      add(layout.out_head(node, false, bank), head);
      add(layout.out_head(node, true, bank), head);
    }
  }
  for (int peer = 0; peer < c.nodes.ranks(); ++peer) {
    add(layout.accusation(peer), 8);
    add(layout.bytes_put(peer), 8);
    add(layout.lost(peer), 8);
    if (c.nodes.together(peer, rank)) continue;
    for (int bank = 0; bank < shape.banks; ++bank) {
      const std::size_t answer = layout.answer(peer, bank);
      add(answer, kAnswerHeadBytes);
      add(answer + layout.answer_content(), sizeof(protocol::Cell));
      add(answer + layout.answer_tokens(), tokens * 4);
      add(answer + layout.answer_masks(), masks);
      add(answer + layout.answer_weights(), weights);
      for (const bool sums : {false, true}) {
        add(layout.answer_head(peer, sums, bank),
            kAnswerHeadBytes +
                c.nodes.ranks_of(c.nodes.node_of(peer)).size() * sizeof(protocol::Cell));
      }
    }
    for (int stage = 0; stage < layout.answer_depth(); ++stage) {
      for (int slot = 0; slot < c.window.combine_slots(); ++slot) {
        add(layout.answer_row(peer, stage, slot), shape.combine_row_bytes);
        if (shape.combine_stages > 0) {
          add(layout.answer_landing(peer, static_cast<std::uint64_t>(stage), slot),
              shape.combine_row_bytes);
        }
      }
    }
  }
  for (const int source : layout.served()) {
    for (int bank = 0; bank < shape.banks; ++bank) {
      add(layout.in_head(source, false, bank), head);
      add(layout.in_head(source, true, bank), head);
      const std::size_t sum = layout.sum(source, bank);
      add(sum, kAnswerHeadBytes +
                   c.nodes.ranks_of(c.nodes.node_of(rank)).size() * sizeof(protocol::Cell));
      add(sum + layout.sum_masks(), tokens * 4);
      add(sum + layout.sum_weights(), weights);
    }
    for (int stage = 0; stage < layout.dispatch_depth(); ++stage) {
      add(layout.landed(source, stage), 8);
      for (int token = 0; token < shape.tokens; ++token) {
        add(layout.dispatch_row(source, stage, token), shape.dispatch_row_bytes);
      }
    }
    for (int stage = 0; stage < layout.answer_depth(); ++stage) {
      for (int token = 0; token < shape.tokens; ++token) {
        add(layout.sum_row(source, stage, token), shape.combine_row_bytes);
      }
    }
  }
  return all;
}

TEST(RelayLayout, RegionsDoNotOverlap) {
  for (const Case& c : cases()) {
    for (int rank = 0; rank < c.nodes.ranks(); ++rank) {
      const RelayLayout layout(c.window, c.nodes, rank, c.group_rows);
      std::vector<Region> regions = regions_of(c, layout, rank);
      std::sort(regions.begin(), regions.end(),
                [](const Region& a, const Region& b) { return a.begin < b.begin; });
      EXPECT_GE(regions.front().begin, c.window.bytes());
      for (std::size_t i = 1; i < regions.size(); ++i) {
        ASSERT_LE(regions[i - 1].begin + regions[i - 1].bytes, regions[i].begin) << i;
      }
      EXPECT_LE(regions.back().begin + regions.back().bytes, layout.bytes());
    }
  }
}

// What one rank sends, its receiver takes apart; no two messages have one slot.
TEST(RelayLayout, SlotsTellWhatTheyAre) {
  using What = RelaySlot::What;
  for (const Case& c : cases()) {
    for (int rank = 0; rank < c.nodes.ranks(); ++rank) {
      const RelayLayout layout(c.window, c.nodes, rank, c.group_rows);
      EXPECT_TRUE(layout.valid());
      std::set<int> seen;
      const auto expect = [&](int slot, int source, What what, int index, int stage, int group) {
        EXPECT_TRUE(seen.insert(slot).second);
        EXPECT_GE(slot, layout.first_slot(source));
        EXPECT_LT(slot, layout.first_slot(source) + layout.slots_per_source());
        EXPECT_LT(slot, layout.slots());
        const RelaySlot read = layout.slot(slot);
        EXPECT_EQ(read.source, source);
        EXPECT_EQ(read.what, what);
        EXPECT_EQ(read.index, index);
        EXPECT_EQ(read.stage, stage);
        EXPECT_EQ(read.group, group);
      };
      const WindowShape& shape = c.window.shape();
      for (int source = 0; source < c.nodes.ranks(); ++source) {
        if (c.nodes.together(source, rank)) continue;
        const auto expect_sign = [&](Sign sign, int place) {
          const int slot = layout.sign_slot(source, sign, place);
          expect(slot, source, What::sign, 0, 0, 0);
          EXPECT_EQ(layout.slot(slot).sign, sign);
          EXPECT_EQ(layout.slot(slot).place, place);
        };
        for (int sign = 0; sign < static_cast<int>(Sign::accused); ++sign) {
          expect_sign(static_cast<Sign>(sign), 0);
        }
        const auto ranks_with = [&](int of) {
          return static_cast<int>(c.nodes.ranks_of(c.nodes.node_of(of)).size());
        };
        for (int place = 0; place < ranks_with(rank); ++place) expect_sign(Sign::accused, place);
        for (int place = 0; place < ranks_with(source); ++place) {
          expect_sign(Sign::died, place);
          expect_sign(Sign::ended, place);
          expect_sign(Sign::absent, place);
        }
        for (int bank = 0; bank < shape.banks; ++bank) {
          expect(layout.head_slot(source, false, bank), source, What::head, bank, 0, 0);
          expect(layout.head_slot(source, true, bank), source, What::head, shape.banks + bank, 0,
                 0);
          expect(layout.answer_slot(source, false, bank), source, What::answer, bank, 0, 0);
          expect(layout.answer_slot(source, true, bank), source, What::sums, bank, 0, 0);
        }
        for (int stage = 0; stage < layout.dispatch_depth(); ++stage) {
          for (int group = 0; group < layout.groups(shape.tokens); ++group) {
            expect(layout.rows_slot(source, stage, group), source, What::rows, 0, stage, group);
          }
        }
        for (int stage = 0; stage < layout.answer_depth(); ++stage) {
          for (int group = 0; group < layout.groups(c.window.combine_slots()); ++group) {
            expect(layout.answer_rows_slot(source, stage, group), source, What::answer_rows, 0,
                   stage, group);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::window
