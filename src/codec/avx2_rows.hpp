// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/plain_sum.hpp"

/// What the objects compiled for AVX2 + FMA + F16C offer to avx2_kernels.cpp, which is compiled for
/// every processor; see plain_sum.hpp. Streaming needs `out` at a multiple of 32 bytes.
namespace sluice::codec::avx2 {

/// Each does a multiple of 16 elements, returns how many, and leaves fewer than 16 to the caller.
int convert(const void* source, DType source_dtype, void* out, DType out_dtype, int elements);
int sum(const PlainSum& args);

/// The whole row.
void quantise(const void* source, DType source_dtype, const Codec& codec, int elements,
              std::uint8_t* out, std::byte* out_scales);

/// Copies a block of bytes with non-temporal stores; `out` is aligned to 32 bytes.
void stream_block(const std::byte* source, std::byte* out, std::size_t bytes);
/// Puts this thread's non-temporal stores before its later stores.
void finish_streaming();

}  // namespace sluice::codec::avx2
