// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numeric/convert.hpp"
#include "numeric/host_device.hpp"
#include "sluice/types.hpp"

/// Single elements of rows, aligned or not, as f32.
namespace sluice::codec {

/// Bytes of an element that rows are summed in or converted to.
SLUICE_INLINE constexpr std::size_t element_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

template <DType dtype>
SLUICE_INLINE float load_element(const void* row, std::size_t index) {
  const auto* address = static_cast<const std::byte*>(row) + index * element_bytes(dtype);
  if constexpr (dtype == DType::f32) {
    float value = 0.0F;
    std::memcpy(&value, address, sizeof value);
    return value;
  } else {
    std::uint16_t value = 0;
    std::memcpy(&value, address, sizeof value);
    return dtype == DType::bf16 ? numeric::f32_from_bf16(value) : numeric::f32_from_f16(value);
  }
}

template <DType dtype>
SLUICE_INLINE void store_element(void* row, std::size_t index, float value) {
  auto* address = static_cast<std::byte*>(row) + index * element_bytes(dtype);
  if constexpr (dtype == DType::f32) {
    std::memcpy(address, &value, sizeof value);
  } else {
    const std::uint16_t narrow =
        dtype == DType::bf16 ? numeric::bf16_from_f32(value) : numeric::f16_from_f32(value);
    std::memcpy(address, &narrow, sizeof narrow);
  }
}

}  // namespace sluice::codec
