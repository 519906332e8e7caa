// SPDX-License-Identifier: MIT
#include "reference/quantise.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "reference/small_float.hpp"

namespace sluice::reference {

namespace {

constexpr double kLargest = 448.0;
constexpr float kFloor = 1e-4F;

// f32 division and multiplication by way of double: a double has more than twice the bits of a
// float and two more, so that rounding twice is rounding once.
float divide(float a, float b) {
  return static_cast<float>(static_cast<double>(a) / static_cast<double>(b));
}
float multiply(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

float group_amax(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  float amax = kFloor;
  for (std::size_t i = begin; i < end; ++i) {
    if (!std::isnan(values[i]) && std::fabs(values[i]) > amax) amax = std::fabs(values[i]);
  }
  return amax;
}

// The exponent of the least power of two that is not below `value`: found by trying them all.
int exponent_above(float value) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    if (std::ldexp(1.0, exponent) >= static_cast<double>(value)) return exponent;
  }
  return 128;
}

void append_float(std::vector<std::byte>& bytes, float value) {
  bytes.resize(bytes.size() + sizeof value);
  std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
}

}  // namespace

DType row_dtype(const Codec& codec) {
  switch (codec.kind) {
    case CodecKind::bf16: return DType::bf16;
    case CodecKind::f16: return DType::f16;
    case CodecKind::f32: return DType::f32;
    case CodecKind::fp8: return DType::e4m3;
  }
  return DType::none;
}

DType scale_dtype(const Codec& codec) {
  if (codec.kind != CodecKind::fp8) return DType::none;
  return codec.scale_form == ScaleForm::ue8m0 ? DType::i32 : DType::f32;
}

std::size_t scale_words(const Codec& codec, std::size_t hidden) {
  if (codec.kind != CodecKind::fp8) return 0;
  const auto group = static_cast<std::size_t>(codec.group);
  const std::size_t groups = (hidden + group - 1) / group;
  return codec.scale_form == ScaleForm::ue8m0 ? (groups + 3) / 4 : groups;
}

EncodedRow encode_row(const Codec& codec, DType dtype, const std::byte* row, std::size_t hidden) {
  EncodedRow encoded;
  const DType to = row_dtype(codec);
  encoded.elements.resize(hidden * bytes_of(to));
  if (codec.kind != CodecKind::fp8) {
    for (std::size_t i = 0; i < hidden; ++i) {
      store(to, encoded.elements.data(), i, load(dtype, row, i));
    }
    return encoded;
  }
  std::vector<float> values(hidden);
  for (std::size_t i = 0; i < hidden; ++i) values[i] = load(dtype, row, i);
  const auto group = static_cast<std::size_t>(codec.group);
  std::vector<std::byte> exponents;
  for (std::size_t begin = 0; begin < hidden; begin += group) {
    const std::size_t end = std::min(begin + group, hidden);
    const float amax = group_amax(values, begin, end);
    const float exact = divide(amax, static_cast<float>(kLargest));
    const int exponent = exponent_above(exact);
    float scale = exact;
    if (codec.scale_form == ScaleForm::pow2) {
      scale = exponent > 127 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0F, exponent);
    } else if (codec.scale_form == ScaleForm::ue8m0) {
      scale = std::ldexp(1.0F, std::min(exponent, 127));
      exponents.push_back(static_cast<std::byte>(std::min(exponent, 127) + 127));
    }
    const float inverse = divide(static_cast<float>(kLargest), amax);
    for (std::size_t i = begin; i < end; ++i) {
      const float scaled = codec.scale_form == ScaleForm::f32 ? multiply(values[i], inverse)
                                                              : divide(values[i], scale);
      store(DType::e4m3, encoded.elements.data(), i, scaled);
    }
    if (codec.scale_form != ScaleForm::ue8m0) append_float(encoded.scales, scale);
  }
  if (codec.scale_form == ScaleForm::ue8m0) {
    exponents.resize(scale_words(codec, hidden) * 4, std::byte{0});
    encoded.scales = exponents;
  }
  return encoded;
}

std::vector<float> decode_row(const Codec& codec, const std::byte* elements,
                              const std::byte* scales, std::size_t hidden) {
  std::vector<float> values(hidden);
  for (std::size_t i = 0; i < hidden; ++i) {
    values[i] = load(row_dtype(codec), elements, i);
    if (codec.kind != CodecKind::fp8) continue;
    const std::size_t group = i / static_cast<std::size_t>(codec.group);
    const float scale = codec.scale_form == ScaleForm::ue8m0
                            ? std::ldexp(1.0F, std::to_integer<int>(scales[group]) - 127)
                            : load(DType::f32, scales, group);
    values[i] = multiply(values[i], scale);
  }
  return values;
}

}  // namespace sluice::reference
