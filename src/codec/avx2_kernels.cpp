// SPDX-License-Identifier: MIT
#include "codec/row_kernels.hpp"

#if defined(SLUICE_HAS_AVX2)
#include <cpuid.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "codec/avx2_rows.hpp"
#include "codec/portable_parts.hpp"
#endif

namespace sluice::codec {

#if defined(SLUICE_HAS_AVX2)
namespace {

/// Small enough that the source stays in the first-level cache for all destinations.
constexpr std::size_t kCopyBlock = 4096;
constexpr std::uintptr_t kStreamAlignment = 32;

void convert(const void* source, DType source_dtype, void* out, DType out_dtype, int elements) {
  // Rows of one dtype are copied, not rounded again: a NaN keeps its bits.
  const int done =
      source_dtype == out_dtype ? 0 : avx2::convert(source, source_dtype, out, out_dtype, elements);
  portable::convert_range(source, source_dtype, out, out_dtype, done, elements);
}

void sum(const SumArgs& args) {
  const int done = avx2::sum(plain(args, kStreamAlignment));
  portable::sum_range(args, done, args.elements);
}

void fan_out(const void* source, std::size_t bytes, void* const* destinations, int count,
             bool streaming) {
  const auto* const from = static_cast<const std::byte*>(source);
  for (std::size_t offset = 0; offset < bytes; offset += kCopyBlock) {
    const std::size_t length = std::min(kCopyBlock, bytes - offset);
    for (int i = 0; i < count; ++i) {
      auto* const to = static_cast<std::byte*>(destinations[i]) + offset;
      if (streaming && reinterpret_cast<std::uintptr_t>(to) % kStreamAlignment == 0) {
        avx2::stream_block(from + offset, to, length);
      } else {
        std::memcpy(to, from + offset, length);
      }
    }
  }
}

bool supported() noexcept {
  // The builtin also asks whether the operating system saves the wide registers. Not every compiler
  // lets it ask for F16C, so that bit is read here.
  __builtin_cpu_init();
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool f16c =
      __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & static_cast<unsigned>(bit_F16C)) != 0;
  return f16c && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

}  // namespace

const RowKernels* avx2_kernels() noexcept {
  static constexpr RowKernels kKernels{"avx2", convert, avx2::quantise,
                                       sum,    fan_out, avx2::finish_streaming};
  static const bool kSupported = supported();
  return kSupported ? &kKernels : nullptr;
}
#else
const RowKernels* avx2_kernels() noexcept {
  return nullptr;
}
#endif

}  // namespace sluice::codec
