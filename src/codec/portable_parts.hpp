// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/row_kernels.hpp"

/// Pieces of the portable kernels that the vectorised sets use where vectors do not fit: short
/// tails, and groups with NaN or infinities.
namespace sluice::codec::portable {

/// Elements [begin, end) of a conversion, row pointers being those of element 0.
void convert_range(const void* source, DType source_dtype, void* out, DType out_dtype, int begin,
                   int end);

/// Elements [begin, end) of a sum.
void sum_range(const SumArgs& args, int begin, int end);

/// Elements [begin, end) as one fp8 group; writes their codes and returns their scale.
float quantise_group(const void* source, DType source_dtype, ScaleForm form, int begin, int end,
                     std::uint8_t* out);

}  // namespace sluice::codec::portable
