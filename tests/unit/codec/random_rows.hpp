// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../numeric/slow_reference.hpp"
#include "sluice/types.hpp"

namespace sluice::test {

inline std::size_t bytes_of(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype == DType::e4m3 ? 1 : 2;
}

/// Of rows that are not encoded.
inline constexpr std::array kRowTypes{DType::bf16, DType::f16, DType::f32};

/// What a row is made of.
enum class Content { ordinary, zeros, subnormal, bits, specials };
inline constexpr std::array kContents{Content::ordinary, Content::zeros, Content::subnormal,
                                      Content::bits, Content::specials};

/// An element's bits in its own format.
inline std::uint32_t random_element(RandomBits& random, DType dtype, Content content) {
  const int mantissa_bits = dtype == DType::f32 ? 23 : dtype == DType::bf16 ? 7 : 10;
  const std::uint32_t sign_bit = dtype == DType::f32 ? 0x8000'0000U : 0x8000U;
  const std::uint32_t bias = dtype == DType::f16 ? 15 : 127;
  const std::uint32_t infinity = (2 * bias + 1) << mantissa_bits;
  const std::uint32_t mantissa = random() & ((1U << mantissa_bits) - 1U);
  const std::uint32_t sign = random.below(2) != 0 ? sign_bit : 0U;
  switch (content) {
    case Content::ordinary:
      return sign | ((bias - 8 + random.below(12)) << mantissa_bits) | mantissa;
    case Content::zeros: return sign;
    case Content::subnormal: return sign | mantissa;
    case Content::bits: return random() & (sign_bit | (sign_bit - 1));
    case Content::specials: break;
  }
  switch (random.below(24)) {
    case 0: return sign | infinity;
    case 1: return sign | infinity | 1U;
    case 2: return sign | infinity | mantissa | (1U << (mantissa_bits - 1));
    case 3: return sign | (infinity - 1U);
    case 4: return sign;
    case 5: return sign | mantissa;
    default: return sign | ((bias - 4 + random.below(8)) << mantissa_bits) | mantissa;
  }
}

/// A row at an address that is aligned to its element and to nothing more, with a guard on both
/// sides that tells a store outside of it.
class Row {
 public:
  Row(DType dtype, int elements, std::size_t misalignment)
      : dtype_(dtype),
        bytes_(static_cast<std::size_t>(elements) * bytes_of(dtype)),
        begin_(kGuardBytes + misalignment * bytes_of(dtype)),
        memory_(begin_ + bytes_ + kGuardBytes, kGuard) {}

  static Row random(RandomBits& random, DType dtype, int elements, Content content) {
    Row row(dtype, elements, random.below(32));
    for (int i = 0; i < elements; ++i) {
      row.set(i, random_element(random, dtype, content));
    }
    return row;
  }

  void set(int index, std::uint32_t bits) {
    std::byte* const address = data() + static_cast<std::size_t>(index) * bytes_of(dtype_);
    if (dtype_ == DType::f32) {
      std::memcpy(address, &bits, 4);
    } else {
      const auto narrow = static_cast<std::uint16_t>(bits);
      std::memcpy(address, &narrow, 2);
    }
  }

  std::uint32_t bits(int index) const {
    const std::byte* const address = data() + static_cast<std::size_t>(index) * bytes_of(dtype_);
    std::uint32_t value = 0;
    if (dtype_ == DType::f32) {
      std::memcpy(&value, address, 4);
    } else if (dtype_ == DType::e4m3) {
      value = std::to_integer<std::uint32_t>(*address);
    } else {
      std::uint16_t narrow = 0;
      std::memcpy(&narrow, address, 2);
      value = narrow;
    }
    return value;
  }

  /// An element as f32, decoded by the test's own arithmetic.
  float value(int index) const {
    const std::uint32_t element = bits(index);
    if (dtype_ == DType::f32) {
      return float_from_bits(element);
    }
    if (dtype_ == DType::bf16) {
      return float_from_bits(element << 16);
    }
    const std::uint32_t magnitude = element & 0x7FFFU;
    const float sign = element >= 0x8000U ? -1.0F : 1.0F;
    if (magnitude > 0x7C00U) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    return magnitude == 0x7C00U ? sign * std::numeric_limits<float>::infinity()
                                : sign * static_cast<float>(value_of(kF16, magnitude));
  }

  bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool outside = i < begin_ || i >= begin_ + bytes_;
      if (outside && memory_[i] != kGuard) {
        return false;
      }
    }
    return true;
  }

  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  std::size_t bytes() const { return bytes_; }
  DType dtype() const { return dtype_; }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0xA5};

  DType dtype_;
  std::size_t bytes_;
  std::size_t begin_;
  std::vector<std::byte> memory_;
};

/// Equal bits; in f32, where the bits of NaN are not promised, NaN equals NaN.
inline bool same_element(const Row& a, const Row& b, int index) {
  if (a.bits(index) == b.bits(index)) {
    return true;
  }
  return a.dtype() == DType::f32 && std::isnan(a.value(index)) && std::isnan(b.value(index));
}

}  // namespace sluice::test
