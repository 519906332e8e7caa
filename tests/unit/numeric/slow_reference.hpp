// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

/// Narrow formats by their definition, in double arithmetic, and rounding by search: nothing here
/// uses the library's numerics.
namespace sluice::test {

struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;  ///< Otherwise values saturate, and only the last code is NaN.
  std::uint32_t nan;  ///< The code that every NaN becomes.
};

inline constexpr NarrowFormat kBf16{8, 7, 127, true, 0x7FFF};
inline constexpr NarrowFormat kF16{5, 10, 15, true, 0x7FFF};
inline constexpr NarrowFormat kE4m3{4, 3, 7, false, 0x7F};

/// The value of a finite code without its sign bit.
inline double value_of(const NarrowFormat& format, std::uint32_t code) {
  const auto exponent = static_cast<int>(code >> format.mantissa_bits);
  const std::uint32_t mantissa = code & ((1U << format.mantissa_bits) - 1U);
  const double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                       : std::ldexp(1.0 + fraction, exponent - format.bias);
}

/// Rounds by looking at all values of a format.
class SearchingEncoder {
 public:
  explicit SearchingEncoder(const NarrowFormat& format) : format_(format) {
    // With infinities, the code of infinity stands in the list with the value that the next finite
    // one would have: so overflow is rounding to nearest even like everything else.
    const std::uint32_t top_exponent = (1U << format.exponent_bits) - 1U;
    const std::uint32_t count = format.has_infinity
                                    ? (top_exponent << format.mantissa_bits) + 1U
                                    : (1U << (format.exponent_bits + format.mantissa_bits)) - 1U;
    for (std::uint32_t code = 0; code < count; ++code) {
      values_.push_back(value_of(format, code));
    }
  }

  /// Non-negative values in order of their codes.
  const std::vector<double>& values() const { return values_; }

  std::uint32_t encode(float x) const {
    if (std::isnan(x)) {
      return format_.nan;
    }
    const std::uint32_t sign =
        std::signbit(x) ? 1U << (format_.exponent_bits + format_.mantissa_bits) : 0U;
    const double magnitude = std::fabs(static_cast<double>(x));
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) {
      return sign | static_cast<std::uint32_t>(values_.size() - 1);
    }
    const auto code = static_cast<std::uint32_t>(above - values_.begin());
    if (code == 0) {
      return sign;
    }
    const double distance_up = *above - magnitude;
    const double distance_down = magnitude - *(above - 1);
    const bool down =
        distance_down < distance_up || (distance_down == distance_up && code % 2 == 1);
    return sign | (down ? code - 1 : code);
  }

 private:
  NarrowFormat format_;
  std::vector<double> values_;
};

inline float float_from_bits(std::uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_from_float(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Seeded 32-bit values, the same on every platform.
class RandomBits {
 public:
  explicit RandomBits(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine_()); }
  /// Below bound; the slight bias does not matter here.
  std::uint32_t below(std::uint32_t bound) { return (*this)() % bound; }

 private:
  std::mt19937 engine_;
};

/// Every value of the format, every point halfway between neighbours, and the floats beside both.
inline std::vector<float> boundary_values(const SearchingEncoder& encoder) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> result;
  const auto add = [&](double magnitude) {
    const auto middle = static_cast<float>(magnitude);
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInfinity)}) {
      result.push_back(value);
      result.push_back(-value);
    }
  };
  const std::vector<double>& values = encoder.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i + 1 < values.size()) {
      add((values[i] + values[i + 1]) / 2);
    }
  }
  for (const float value :
       {kInfinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::min(), 464.0F, 465.0F, 480.0F, 1e30F}) {
    add(static_cast<double>(value));
  }
  return result;
}

}  // namespace sluice::test
