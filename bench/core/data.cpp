// SPDX-License-Identifier: MIT
#include "data.hpp"

#include <bit>

#include "random.hpp"

namespace sluice::bench {
namespace {

/// Most of the memory that the separate sets of one tensor may take.
constexpr std::size_t kSeparateBytes = std::size_t{256} << 20;
/// Rows between overlapping sets; odd, so that no two sets agree in their place in a cache.
constexpr std::int64_t kOverlapRows = 61;

}  // namespace

Noise::Noise(std::uint64_t seed, int hidden)
    : seed_(seed), values_(kValues + static_cast<std::size_t>(hidden)) {
  Random random(mix(seed, 0x6e6f6973, 0));
  for (std::uint16_t& value : values_) {
    // A sum of four uniform numbers is near enough to a normal one: mean 0, deviation 1.
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) sum += random.unit();
    const float normal = static_cast<float>((sum - 2.0) * 1.7320508075688772);
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal) >> 16);
  }
}

const std::uint16_t* Noise::row(Stream stream, int rank, std::int64_t row) const noexcept {
  const std::uint64_t owner =
      static_cast<std::uint64_t>(stream) << 32 | static_cast<std::uint64_t>(rank);
  return values_.data() + mix(seed_, owner, static_cast<std::uint64_t>(row)) % kValues;
}

Pool Pool::plan(std::int64_t rows, std::int64_t used_rows, std::size_t row_bytes, int sets) {
  const std::size_t separate =
      static_cast<std::size_t>(used_rows) * row_bytes * static_cast<std::size_t>(sets);
  return Pool{rows, separate <= kSeparateBytes ? rows : kOverlapRows, sets};
}

}  // namespace sluice::bench
