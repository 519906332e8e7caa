// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sluice::support {

/// SplitMix64: the same numbers with every compiler and standard library, which the distributions
/// of <random> do not promise.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// A generator for a purpose of its own: (seed, a, b, c) name it.
  static Random of(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
    Random mix(seed);
    for (const std::uint64_t part : {a, b, c})
      mix.state_ = mix.next() ^ (part * 0xD1342543DE82EF95U);
    return Random(mix.next());
  }

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// From 0 to bound - 1; bound > 0. The bias of the remainder does not matter here.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }
  /// In [0, 1), a multiple of 2^-24.
  float unit() { return static_cast<float>(next() >> 40) * 0x1p-24F; }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::support
