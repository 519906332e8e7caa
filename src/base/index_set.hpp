// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::base {

/// Some of the numbers from 0 to `size` - 1, where most often there are few of them.
class IndexSet {
 public:
  explicit IndexSet(int size) : words_((static_cast<std::size_t>(size) + 63) / 64) {}

  void insert(int number) noexcept { word(number) |= bit(number); }
  void erase(int number) noexcept { word(number) &= ~bit(number); }
  /// Calls visit(number) for each, ascending. It may insert and erase: numbers up to the next multiple of 64 are visited if they
  /// were there when the first of those was.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t left = words_[i]; left != 0; left &= left - 1) {
        visit(static_cast<int>(64 * i) + std::countr_zero(left));
      }
    }
  }

 private:
  static std::uint64_t bit(int number) noexcept { return std::uint64_t{1} << (number % 64); }
  std::uint64_t& word(int number) noexcept { return words_[static_cast<std::size_t>(number) / 64]; }

  std::vector<std::uint64_t> words_;
};

}  // namespace sluice::base
