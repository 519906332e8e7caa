// SPDX-License-Identifier: MIT
//
// Regions of a window never overlap and lie inside it, by brute force over every address that the
// engine asks for; and its sizes are the formulas that were promised.
#include "window/window_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "window/handle_layout.hpp"

namespace sluice::window {
namespace {

struct Region {
  std::size_t begin;
  std::size_t bytes;
  std::string name;
};

std::vector<WindowShape> shapes() {
  std::vector<WindowShape> all;
  for (const int ranks : {1, 2, 5}) {
    for (const int top_k : {1, 3, 32}) {
      for (const int in_flight : {1, 2, 4}) {
        for (const int tokens : {1, 7}) {
          // Stages for dispatch alone, stages for both.
          for (const bool staged_combine : {false, true}) {
            for (const int rows_per_token : {1, 3}) {
              WindowShape shape;
              shape.ranks = ranks;
              shape.top_k = top_k;
              shape.banks = 2 * in_flight + 1;
              shape.dispatch_stages = in_flight;
              shape.combine_stages = staged_combine ? in_flight : 0;
              shape.tokens = tokens;
              shape.combine_rows_per_token = rows_per_token;
              // Row sizes that are and are not multiples of the alignment.
              for (const std::size_t row : {std::size_t{32}, std::size_t{1028}}) {
                shape.dispatch_row_bytes = row;
                shape.combine_row_bytes = row + 100;
                all.push_back(shape);
              }
            }
          }
        }
      }
    }
  }
  return all;
}

std::string text_of(const WindowShape& shape) {
  return "R " + std::to_string(shape.ranks) + " K " + std::to_string(shape.top_k) + " B " +
         std::to_string(shape.banks) + " stages " + std::to_string(shape.dispatch_stages) + "/" +
         std::to_string(shape.combine_stages) + " S " + std::to_string(shape.tokens) + " C/S " +
         std::to_string(shape.combine_rows_per_token) + " row " +
         std::to_string(shape.dispatch_row_bytes);
}

/// Every region that the engine addresses, as it does.
class Regions {
 public:
  explicit Regions(const WindowShape& shape) : shape_(shape), layout_(shape) {
    for (int peer = 0; peer < shape.ranks; ++peer) add_lane(peer);
    add_staging();
  }
  std::vector<Region>& all() { return regions_; }

 private:
  void add(std::size_t begin, std::size_t bytes, const char* name, int a, int b, int c) {
    regions_.push_back({begin, bytes,
                        std::string(name) + " " + std::to_string(a) + "/" + std::to_string(b) +
                            "/" + std::to_string(c)});
  }
  void add_lane(int peer) {
    for (int kind = 0; kind < protocol::kKinds; ++kind) {
      add(layout_.told(peer, static_cast<protocol::Kind>(kind)), sizeof(std::uint64_t), "told",
          peer, kind, 0);
    }
    add(layout_.accusation(peer), sizeof(std::uint64_t), "accusation", peer, 0, 0);
    for (int bank = 0; bank < shape_.banks; ++bank) {
      for (int kind = 0; kind < protocol::kCellKinds; ++kind) {
        add(layout_.cell(peer, static_cast<protocol::CellKind>(kind), bank), sizeof(protocol::Cell),
            "cell", peer, bank, kind);
      }
      add_bank(peer, bank);
    }
  }
  void add_bank(int peer, int bank) {
    const std::size_t weights = static_cast<std::size_t>(shape_.top_k) * sizeof(float);
    for (int token = 0; token < shape_.tokens; ++token) {
      add(layout_.dispatch_header(peer, bank, token), DispatchHeaderLayout::bytes(shape_.top_k),
          "header", peer, bank, token);
      add(layout_.given_weights(peer, bank, token), weights, "given weights", peer, bank, token);
      add(layout_.row_weights(peer, bank, token), weights, "row weights", peer, bank, token);
    }
    for (int slot = 0; slot < layout_.combine_slots(); ++slot) {
      add(layout_.combine_mask(peer, bank, slot), sizeof(std::uint32_t), "mask", peer, bank, slot);
      if (shape_.combine_stages > 0) continue;
      add(layout_.combine_row(peer, bank, slot), shape_.combine_row_bytes, "combine row", peer,
          bank, slot);
    }
  }
  void add_staging() {
    for (int stage = 0; stage < shape_.dispatch_stages; ++stage) {
      for (int token = 0; token < shape_.tokens; ++token) {
        add(layout_.staged_dispatch_row(stage, token), shape_.dispatch_row_bytes, "staged row",
            stage, token, 0);
      }
    }
    for (int stage = 0; stage < shape_.combine_stages; ++stage) {
      for (int home = 0; home < shape_.ranks; ++home) {
        for (int slot = 0; slot < layout_.combine_slots(); ++slot) {
          add(layout_.staged_combine_row(stage, home, slot), shape_.combine_row_bytes,
              "staged combine row", stage, home, slot);
        }
      }
    }
  }

  WindowShape shape_;
  WindowLayout layout_;
  std::vector<Region> regions_;
};

TEST(WindowLayout, RegionsNeitherOverlapNorLeaveTheWindow) {
  for (const WindowShape& shape : shapes()) {
    std::vector<Region> regions = std::move(Regions(shape).all());
    std::sort(regions.begin(), regions.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < regions.size(); ++i) {
      ASSERT_LE(regions[i - 1].begin + regions[i - 1].bytes, regions[i].begin)
          << text_of(shape) << ": " << regions[i - 1].name << " and " << regions[i].name;
    }
    const std::size_t bytes = WindowLayout(shape).bytes();
    ASSERT_LE(regions.back().begin + regions.back().bytes, bytes) << text_of(shape);
    ASSERT_EQ(bytes % kPageBytes, 0U) << text_of(shape);
  }
}

// A peer writes into its own lane only: everything of peer j lies between lane j and lane j + 1.
TEST(WindowLayout, LanesAreApart) {
  for (const WindowShape& shape : shapes()) {
    const WindowLayout layout(shape);
    for (int peer = 0; peer < shape.ranks; ++peer) {
      const std::size_t end = layout.lane(peer + 1);
      const int bank = shape.banks - 1;
      EXPECT_EQ(layout.lane(peer) % kRowAlignment, 0U);
      EXPECT_GE(layout.told(peer, protocol::Kind::dispatch), layout.lane(peer));
      EXPECT_LE(layout.combine_mask(peer, bank, layout.combine_slots() - 1) + 4, end);
      EXPECT_LE(layout.row_weights(peer, bank, shape.tokens - 1) +
                    static_cast<std::size_t>(shape.top_k) * 4,
                end);
    }
  }
}

TEST(WindowLayout, AlignmentOfWhatIsAccessed) {
  for (const WindowShape& shape : shapes()) {
    const WindowLayout layout(shape);
    for (int peer = 0; peer < shape.ranks; ++peer) {
      for (int bank = 0; bank < shape.banks; ++bank) {
        EXPECT_EQ(layout.cell(peer, protocol::CellKind::weights, bank) % 64, 0U);
        EXPECT_EQ(layout.dispatch_header(peer, bank, shape.tokens - 1) % 16, 0U);
        EXPECT_EQ(layout.combine_row(peer, bank, shape.tokens - 1) % kRowAlignment, 0U);
        EXPECT_EQ(layout.staged_dispatch_row(bank, shape.tokens - 1) % kRowAlignment, 0U);
        EXPECT_EQ(layout.staged_combine_row(bank, peer, 0) % kRowAlignment, 0U);
        EXPECT_EQ(layout.combine_mask(peer, bank, shape.tokens - 1) % 4, 0U);
        EXPECT_EQ(layout.given_weights(peer, bank, shape.tokens - 1) % 4, 0U);
      }
    }
    // Words of two kinds share no cache line.
    EXPECT_GE(layout.told(0, protocol::Kind::combine) - layout.told(0, protocol::Kind::dispatch),
              kLineBytes);
  }
}

// Dispatch: Sd x S rows. Combine, pushed: B x R x S records, x rows per token; staged: Sc x R x S
// x rows per token. Rows rounded up to their alignment.
TEST(WindowLayout, SizesAreTheFormulas) {
  for (const WindowShape& shape : shapes()) {
    const WindowLayout layout(shape);
    const auto number = [](int value) { return static_cast<std::size_t>(value); };
    const std::size_t slots = number(shape.banks) * number(shape.ranks) * number(shape.tokens);
    const std::size_t row = (shape.dispatch_row_bytes + 127) / 128 * 128;
    const std::size_t combine_row = (shape.combine_row_bytes + 127) / 128 * 128;
    const std::size_t per_token = number(shape.combine_rows_per_token);
    const bool push_combine = shape.combine_stages == 0;
    EXPECT_EQ(layout.combine_slot_bytes(), push_combine ? slots * per_token * combine_row : 0)
        << text_of(shape);
    EXPECT_EQ(layout.dispatch_staging_bytes(),
              number(shape.dispatch_stages) * number(shape.tokens) * row)
        << text_of(shape);
    EXPECT_EQ(layout.combine_staging_bytes(), number(shape.combine_stages) * number(shape.ranks) *
                                                  number(shape.tokens) * per_token * combine_row)
        << text_of(shape);
    const std::size_t account = layout.signal_bytes() + layout.dispatch_metadata_bytes() +
                                layout.combine_metadata_bytes() + layout.combine_slot_bytes() +
                                layout.dispatch_staging_bytes() + layout.combine_staging_bytes();
    EXPECT_LE(account, layout.bytes()) << text_of(shape);
    EXPECT_LT(layout.bytes() - account, kPageBytes) << text_of(shape);
  }
}

TEST(HandleLayout, ArraysNeitherOverlapNorLeaveTheHandle) {
  for (const int ranks : {1, 3, 16}) {
    for (const int top_k : {1, 8, 32}) {
      for (const int experts : {0, 1, 64}) {
        for (const int tokens : {1, 33}) {
          const HandleLayout layout(ranks, top_k, experts, tokens);
          const auto n = static_cast<std::size_t>(ranks * tokens);
          const auto k = static_cast<std::size_t>(top_k);
          const auto l = static_cast<std::size_t>(experts);
          const auto t = static_cast<std::size_t>(tokens);
          std::vector<Region> regions = {
              {0, sizeof(HandleHeader), "header"},
              {layout.topk_ids, 4 * t * k, "topk_ids"},
              {layout.topk_weights, 4 * t * k, "topk_weights"},
              {layout.counts, 4 * l, "counts"},
              {layout.aligned_counts, 4 * l, "aligned_counts"},
              {layout.offsets, 8 * (l + 1), "offsets"},
              {layout.source_offsets, 8 * static_cast<std::size_t>(ranks + 1), "source_offsets"},
              {layout.record_rank, 4 * n, "record_rank"},
              {layout.record_token, 4 * n, "record_token"},
              {layout.local_ids, 4 * n * k, "local_ids"},
              {layout.local_weights, 4 * n * k, "local_weights"},
              {layout.route_rows, 4 * n * k, "route_rows"},
              {layout.record_numbers(), 4 * n, "record_numbers"}};
          std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
          });
          for (std::size_t i = 0; i < regions.size(); ++i) {
            EXPECT_EQ(regions[i].begin % kLineBytes, 0U) << regions[i].name;
            const std::size_t next = i + 1 < regions.size() ? regions[i + 1].begin : layout.bytes;
            EXPECT_LE(regions[i].begin + regions[i].bytes, next) << regions[i].name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::window
