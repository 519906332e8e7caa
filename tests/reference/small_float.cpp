// SPDX-License-Identifier: MIT
#include "reference/small_float.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace sluice::reference {

SmallFormat::SmallFormat(int exponent_bits, int mantissa_bits, bool finite_only)
    : sign_bit_(1U << (exponent_bits + mantissa_bits)),
      nan_code_(sign_bit_ - 1U),
      least_exponent_(2 - (1 << (exponent_bits - 1))),
      fractions_(1U << mantissa_bits),
      finite_only_(finite_only) {
  const std::uint32_t infinity = ((1U << exponent_bits) - 1U) << mantissa_bits;
  const std::uint32_t finite_codes = finite_only ? nan_code_ : infinity;
  for (std::uint32_t code = 0; code < finite_codes; ++code) {
    const auto exponent = static_cast<int>(code / fractions_);
    const std::uint32_t fraction = code % fractions_;
    const bool subnormal = exponent == 0;
    const double significand = static_cast<double>(subnormal ? fraction : fractions_ + fraction);
    values_.push_back(
        std::ldexp(significand, least_exponent_ + (subnormal ? 0 : exponent - 1) - mantissa_bits));
  }
}

float SmallFormat::decode(std::uint32_t code) const {
  const std::uint32_t magnitude = code & (sign_bit_ - 1U);
  const bool negative = (code & sign_bit_) != 0;
  float value = std::numeric_limits<float>::quiet_NaN();
  if (magnitude < values_.size()) {
    value = static_cast<float>(values_[magnitude]);
  } else if (!finite_only_ && magnitude == values_.size()) {
    value = std::numeric_limits<float>::infinity();
  }
  return negative ? -value : value;
}

std::uint32_t SmallFormat::last_not_above(double magnitude) const {
  // Values of one exponent are equally far apart; those below the least normal one as the ones above it.
  // All of this is exact in double.
  if (magnitude >= values_.back()) return static_cast<std::uint32_t>(values_.size()) - 1U;
  const int above_least = std::max(std::ilogb(magnitude) - least_exponent_, -1);
  const std::size_t first = static_cast<std::size_t>(above_least + 1) * fractions_;
  const double width = values_[first + 1] - values_[first];
  return static_cast<std::uint32_t>(first) +
         static_cast<std::uint32_t>((magnitude - values_[first]) / width);
}

std::uint32_t SmallFormat::encode(float value) const {
  if (std::isnan(value)) return nan_code_;
  const std::uint32_t sign = std::signbit(value) ? sign_bit_ : 0U;
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint32_t below_code = last_not_above(magnitude);
  const auto last_code = static_cast<std::uint32_t>(values_.size()) - 1U;
  if (below_code == last_code && finite_only_) return sign | last_code;
  const double below = values_[below_code];
  // Past the last finite value the next step of the same width is where infinity begins.
  const double next =
      below_code < last_code ? values_[below_code + 1U] : below + (below - values_[last_code - 1U]);
  const double middle = (below + next) / 2.0;  // Exact: one bit more than the format has.
  // Without branches, which would be taken at random.
  const auto odd = below_code % 2U;
  const auto above = static_cast<std::uint32_t>(magnitude > middle);
  const auto at_least = static_cast<std::uint32_t>(magnitude >= middle);
  return sign | (below_code + (above | (at_least & odd)));
}

const SmallFormat& bf16_format() {
  static const SmallFormat format(8, 7, false);
  return format;
}

const SmallFormat& f16_format() {
  static const SmallFormat format(5, 10, false);
  return format;
}

const SmallFormat& e4m3_format() {
  static const SmallFormat format(4, 3, true);
  return format;
}

namespace {

const SmallFormat& format_of(DType dtype) {
  if (dtype == DType::bf16) return bf16_format();
  if (dtype == DType::f16) return f16_format();
  return e4m3_format();
}

}  // namespace

float load(DType dtype, const std::byte* elements, std::size_t index) {
  if (dtype == DType::f32) {
    float value = 0.0F;
    std::memcpy(&value, elements + index * sizeof value, sizeof value);
    return value;
  }
  if (dtype == DType::e4m3) {
    return format_of(dtype).decode(std::to_integer<std::uint32_t>(elements[index]));
  }
  std::uint16_t code = 0;
  std::memcpy(&code, elements + index * sizeof code, sizeof code);
  return format_of(dtype).decode(code);
}

void store(DType dtype, std::byte* elements, std::size_t index, float value) {
  if (dtype == DType::f32) {
    std::memcpy(elements + index * sizeof value, &value, sizeof value);
  } else if (dtype == DType::e4m3) {
    elements[index] = static_cast<std::byte>(format_of(dtype).encode(value));
  } else {
    const auto code = static_cast<std::uint16_t>(format_of(dtype).encode(value));
    std::memcpy(elements + index * sizeof code, &code, sizeof code);
  }
}

float through(DType dtype, float value) {
  if (dtype == DType::f32) return value;
  return format_of(dtype).decode(format_of(dtype).encode(value));
}

std::size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::none: return 0;
    case DType::u8:
    case DType::e4m3: return 1;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::i32:
    case DType::f32: return 4;
    case DType::i64: return 8;
  }
  return 0;
}

}  // namespace sluice::reference
