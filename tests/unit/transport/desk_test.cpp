// SPDX-License-Identifier: MIT
#include "transport/libfabric/desk.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace sluice::transport {
namespace {

TEST(Desk, HasAPlaceOfItsOwnForEveryWord) {
  Desk desk(2, 3, 5);
  std::set<std::size_t> places{desk.unread()};
  int words = 1;
  for (int writer = 0; writer < 3; ++writer) {
    places.insert(desk.taken(writer));
    ++words;
    for (int rail = 0; rail < 2; ++rail) {
      for (std::uint64_t number = 1; number <= 5; ++number) {
        places.insert(desk.signal(rail, writer, number));
        ++words;
      }
      EXPECT_EQ(desk.signal(rail, writer, 6), desk.signal(rail, writer, 1));
    }
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(words));
  EXPECT_EQ(desk.bytes(), 2 * places.size() * sizeof(std::uint64_t));
  EXPECT_EQ(*places.rbegin(), places.size() - 1);
}

TEST(Desk, KeepsWhatItWritesApartFromWhatPeersWrite) {
  Desk desk(1, 2, 4);
  const std::size_t place = desk.signal(0, 1, 3);
  const std::byte* const kept = desk.keep(place, 77);
  EXPECT_EQ(desk.load(place), 0U);
  std::uint64_t word = 0;
  std::memcpy(&word, kept, sizeof(word));
  EXPECT_EQ(word, 77U);
  EXPECT_GE(kept, desk.base() + desk.bytes() / 2);
}

TEST(Desk, CountsSignalsModuloTheirBits) {
  const std::uint64_t wrap = std::uint64_t{1} << 32;
  EXPECT_TRUE(Desk::is_number(Desk::word(7, 0xffffffffU), 7));
  EXPECT_TRUE(Desk::is_number(Desk::word(wrap + 7, 1), wrap + 7));
  EXPECT_FALSE(Desk::is_number(Desk::word(7, 1), 8));
  EXPECT_FALSE(Desk::is_number(0, 1));
  // The first bytes of a word: its immediate, above which the old number still lies.
  EXPECT_FALSE(Desk::is_number((Desk::word(3, 0) & ~0xffffffffULL) | 9, 4));
}

}  // namespace
}  // namespace sluice::transport
