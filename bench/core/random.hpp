// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::bench {

/// A bijection of 64-bit numbers that changes about half of the bits for every bit changed (the
/// finaliser of the splitmix64 generator).
constexpr std::uint64_t scramble(std::uint64_t value) noexcept {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9ULL;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// One number out of three: names of data sets, rows and the like become seeds.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  return scramble(scramble(scramble(a + kStep) + b + kStep) + c + kStep);
}

/// splitmix64: the same numbers on every machine, which the standard distributions do not promise.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    return scramble(state_);
  }
  /// In [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// In [0, bound), bound at least 1. The bias is below bound / 2^53.
  std::size_t below(std::size_t bound) noexcept {
    return static_cast<std::size_t>(unit() * static_cast<double>(bound));
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::bench
