// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/row_kernels.hpp"

/// What the objects compiled for AVX2 + FMA + F16C offer to avx2_kernels.cpp, which is compiled for
/// every processor. Arguments are plain data and those objects instantiate nothing from the
/// standard library, so that no shared inline function gets a copy with AVX2 instructions in it.
namespace sluice::codec::avx2 {

/// SumArgs with its spans spelled out.
struct PlainSum {
  const SumTerm* terms = nullptr;
  std::size_t term_count = 0;
  DType term_dtype = DType::bf16;
  bool weighted = false;
  bool scaled = false;
  float scale = 1.0F;
  const SumExtra* extras = nullptr;
  std::size_t extra_count = 0;
  void* out = nullptr;
  DType out_dtype = DType::bf16;
  int elements = 0;
  bool streaming = false;  // `out` is aligned to 32 bytes and of 16-bit elements.
};

/// Each does a multiple of 16 elements, returns how many, and leaves fewer than 16 to the caller.
int convert(const void* source, DType source_dtype, void* out, DType out_dtype, int elements);
int sum(const PlainSum& args);

/// The whole row.
void quantise(const void* source, DType source_dtype, const Codec& codec, int elements,
              std::uint8_t* out, std::byte* out_scales);

/// Copies a block of bytes with non-temporal stores; `out` is aligned to 32 bytes.
void stream_block(const std::byte* source, std::byte* out, std::size_t bytes);
/// Makes this thread's non-temporal stores complete before its later stores.
void finish_streaming();

}  // namespace sluice::codec::avx2
