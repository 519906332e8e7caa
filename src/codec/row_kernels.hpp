// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/types.hpp"

namespace sluice::codec {

/// One addend of a sum of rows.
struct SumTerm {
  const void* row = nullptr;
  float weight = 1.0F;
};

/// A row added after the terms and the scaling, in its own dtype.
struct SumExtra {
  const void* row = nullptr;
  DType dtype = DType::f32;
};

/// s = +0; for each term in order: s = fma(weight, row, s) if weighted, else s = s + row;
/// if scaled: s = s * scale; for each extra in order: s = s + extra; out = round(s) to `out_dtype`.
/// All in f32, nearest even. With no term s is +0. This is the only place where rows are summed.
///
/// With groups the terms are sums of sums: for each group p = +0; for each of its terms in order:
/// p = fma(weight, row, p) (weighted is set); then s = s + round(p) to `term_dtype`.
struct SumArgs {
  std::span<const SumTerm> terms;
  std::span<const std::uint8_t> groups;  // Numbers of terms, each at least 1, together all.
  DType term_dtype = DType::bf16;        // f32, bf16 or f16
  bool weighted = false;
  bool scaled = false;
  float scale = 1.0F;
  std::span<const SumExtra> extras;
  void* out = nullptr;
  DType out_dtype = DType::bf16;  // f32, bf16 or f16
  int elements = 0;               // any count >= 0; multiples of 16 in the engines
  /// The output will not be read soon: as in fan_out.
  bool streaming = false;
  /// Terms of the call after this one, a hint: their rows begin to be fetched during this call.
  std::span<const SumTerm> next;
};

/// Row functions of one instruction set. All sets give the same bits, except for those of NaN in
/// f32. Rows are aligned to their element only (no more may be assumed); source and destination do
/// not overlap. None allocates, and each touches exactly the bytes named.
///
/// The caller holds a numeric::FloatEnvironment: the sums and the encoding's products are ordinary
/// arithmetic in this thread's mode. Dtypes other than those named are not checked here.
struct RowKernels {
  const char* name;
  /// Converts n elements between f32, bf16 and f16 (through f32, nearest even); equal dtypes:
  /// copies.
  void (*convert)(const void* source, DType source_dtype, void* out, DType out_dtype, int elements);
  /// Encodes a row of f32, bf16 or f16 as fp8 e4m3 (out: `elements` bytes) with one scale per
  /// `codec.group` elements (out_scales: scale_bytes(codec, elements) bytes). A short last group is
  /// legal. codec.kind is fp8.
  void (*quantise)(const void* source, DType source_dtype, const Codec& codec, int elements,
                   std::uint8_t* out, std::byte* out_scales);
  void (*sum)(const SumArgs& args);
  /// Copies `bytes` to each of `count` destinations, reading the source once per cache block.
  /// `streaming`: the destinations will not be read soon; see finish_streaming.
  void (*fan_out)(const void* source, std::size_t bytes, void* const* destinations, int count,
                  bool streaming);
  /// Streaming calls may use non-temporal stores, which other threads see in any order, also after
  /// a later release store. This call puts all of this thread's before its later stores.
  void (*finish_streaming)();
};

/// Plain C++: what the others are tested against, and what runs where there is no other.
const RowKernels& portable_kernels() noexcept;
/// The AVX2 + FMA + F16C set, or null where the processor or the build lacks it.
const RowKernels* avx2_kernels() noexcept;
/// AVX2 with AVX-512 (F, BW, DQ, BF16) for sums of bf16, or null likewise.
const RowKernels* avx512_kernels() noexcept;
/// The fastest set of this processor. SLUICE_KERNELS=portable|avx2|avx512 forces one; a name that is not
/// known, or a set that this processor lacks, leaves the choice as it is. Decided once per process.
const RowKernels& best_kernels() noexcept;

/// Fixed sizes of a row of `hidden` elements under a codec.
/// Element type of encoded rows: bf16, f16, f32 or e4m3.
DType row_dtype(const Codec& codec) noexcept;
std::size_t row_bytes(const Codec& codec, int hidden) noexcept;
/// Scales per row: ceil(hidden / group) for fp8, else 0.
int scale_count(const Codec& codec, int hidden) noexcept;
/// f32 forms: 4 bytes each. ue8m0: one byte each, four to an int32 (lowest byte first), unused
/// bytes of the last int32 are 0.
std::size_t scale_bytes(const Codec& codec, int hidden) noexcept;
/// Whether kind, form and group are legal.
bool valid(const Codec& codec) noexcept;

}  // namespace sluice::codec
