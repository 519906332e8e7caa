// SPDX-License-Identifier: MIT
#include "protocol/signals.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "protocol/host_access.hpp"

namespace sluice::protocol {
namespace {

CellContent content_of(std::uint64_t epoch) {
  CellContent content;
  content.records = static_cast<std::int32_t>(epoch * 3);
  content.capacity = static_cast<std::int64_t>(epoch * 5);
  content.row_offset = epoch * 7;
  return content;
}

TEST(Cell, OnlyItsOwnEpochHasArrived) {
  Cell cell{};
  EXPECT_FALSE(arrived<HostAccess>(cell, 1));
  publish<HostAccess>(cell, content_of(6), 6);
  EXPECT_TRUE(arrived<HostAccess>(cell, 6));
  EXPECT_FALSE(arrived<HostAccess>(cell, 1)) << "older";
  EXPECT_FALSE(arrived<HostAccess>(cell, 11)) << "newer";
  EXPECT_EQ(cell.content.records, 18);
}

TEST(Told, IsTheLastWord) {
  std::uint64_t word = 0;
  tell<HostAccess>(word, 4);
  EXPECT_EQ(told<HostAccess>(word), 4U);
}

// Whoever sees the epoch sees the content and what was written before it.
TEST(Cell, CarriesItsContentAndThePayload) {
  constexpr std::uint64_t kEpochs = 2000;
  Cell cell{};
  std::uint64_t word = 0;
  std::uint64_t payload = 0;
  int wrong = 0;
  std::thread reader([&] {
    for (std::uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      while (!arrived<HostAccess>(cell, epoch)) std::this_thread::yield();
      if (payload != epoch || cell.content.row_offset != epoch * 7 ||
          cell.content.records != static_cast<std::int32_t>(epoch * 3)) {
        ++wrong;
      }
      tell<HostAccess>(word, epoch);
    }
  });
  for (std::uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    payload = epoch;
    publish<HostAccess>(cell, content_of(epoch), epoch);
    while (told<HostAccess>(word) < epoch) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(wrong, 0);
}

// Every difference between two calls is one that cells show, but for what ranks may differ in.
TEST(Cell, Agreement) {
  using Change = std::function<void(CellContent&)>;
  const Change differences[] = {
      [](CellContent& c) { c.mode = 2; },
      [](CellContent& c) { c.layout = 2; },
      [](CellContent& c) { c.codec_kind = 3; },
      [](CellContent& c) { c.codec_form = 1; },
      [](CellContent& c) { c.codec_group = 64; },
      [](CellContent& c) { c.capacity = 9; },
      [](CellContent& c) { c.alignment = 8; },
      [](CellContent& c) { c.flags = cell_flags::kNoRows; },
      [](CellContent& c) { c.flags = cell_flags::kCached; },
      [](CellContent& c) { c.flags = cell_flags::kGivenWeights; },
      [](CellContent& c) { c.flags = cell_flags::kRowWeights; },
      [](CellContent& c) { c.flags = cell_flags::kPlainSum; },
  };
  const Change own_business[] = {
      [](CellContent& c) { c.records = 5; },
      [](CellContent& c) { c.row_offset = 5; },
      [](CellContent& c) { c.row_stride = 5; },
      [](CellContent& c) { c.flags = cell_flags::kRegistered; },
      [](CellContent& c) { c.flags = cell_flags::kNothing; },
  };
  const CellContent base;
  EXPECT_TRUE(agree(base, base));
  for (std::size_t i = 0; i < std::size(differences); ++i) {
    CellContent other;
    differences[i](other);
    EXPECT_FALSE(agree(base, other)) << i;
    EXPECT_FALSE(agree(other, base)) << i;
    EXPECT_TRUE(agree(other, other)) << i;
  }
  for (std::size_t i = 0; i < std::size(own_business); ++i) {
    CellContent other;
    own_business[i](other);
    EXPECT_TRUE(agree(base, other)) << i;
  }
}

}  // namespace
}  // namespace sluice::protocol
