// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/types.hpp"

/// The reference's own number formats. A format is the sorted list of its values, and rounding finds
/// the two of them that are nearest, with exact arithmetic in double: slow, and hard to get wrong.
namespace sluice::reference {

/// A floating-point format with a sign, `exponent_bits` and `mantissa_bits`.
class SmallFormat {
 public:
  /// finite_only: the largest exponent holds numbers too, the code of all ones is the NaN, and
  /// what is too large becomes the largest number. Otherwise as IEEE 754 says.
  SmallFormat(int exponent_bits, int mantissa_bits, bool finite_only);

  float decode(std::uint32_t code) const;
  /// Nearest value, ties to the even code.
  std::uint32_t encode(float value) const;

 private:
  /// Code of the last value that is not above `magnitude`.
  std::uint32_t last_not_above(double magnitude) const;

  std::vector<double> values_;  // The finite values that are not negative, by their code.
  std::uint32_t sign_bit_;
  std::uint32_t nan_code_;
  int least_exponent_;       // Of normal values.
  std::uint32_t fractions_;  // Values of one exponent.
  bool finite_only_;
};

const SmallFormat& bf16_format();
const SmallFormat& f16_format();
const SmallFormat& e4m3_format();

/// Element `index` of an array of bf16, f16, f32 or e4m3 (unscaled).
float load(DType dtype, const std::byte* elements, std::size_t index);
/// Rounds to nearest even (f32: stores the bits).
void store(DType dtype, std::byte* elements, std::size_t index, float value);
/// The value that `dtype` makes of `value`: decode(encode(value)).
float through(DType dtype, float value);
/// Bytes of one element of any dtype that the tests use.
std::size_t bytes_of(DType dtype);

}  // namespace sluice::reference
