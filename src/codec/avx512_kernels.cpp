// SPDX-License-Identifier: MIT
#include "codec/row_kernels.hpp"

#if defined(SLUICE_HAS_AVX512)
#include <algorithm>
#include <optional>

#include "codec/avx512_rows.hpp"
#endif

namespace sluice::codec {

#if defined(SLUICE_HAS_AVX512)
namespace {

constexpr std::size_t kStreamAlignment = 64;

// Sums of bf16 rows to bf16, where the processor's time goes, have a function of their own; all else
// is as in AVX2. (Encoding fp8 in AVX-512 took 15 % less time on Zen 4: not worth a second encoder.)
void sum(const SumArgs& args) {
  const bool all_bf16 = args.term_dtype == DType::bf16 && args.out_dtype == DType::bf16 &&
                        std::all_of(args.extras.begin(), args.extras.end(),
                                    [](const SumExtra& e) { return e.dtype == DType::bf16; });
  if (all_bf16) {
    avx512::sum(plain(args, kStreamAlignment));
  } else {
    avx2_kernels()->sum(args);
  }
}

bool supported() noexcept {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

std::optional<RowKernels> make() noexcept {
  if (avx2_kernels() == nullptr || !supported()) return std::nullopt;
  RowKernels kernels = *avx2_kernels();
  kernels.name = "avx512";
  kernels.sum = sum;
  return kernels;
}

}  // namespace

const RowKernels* avx512_kernels() noexcept {
  static const std::optional<RowKernels> kKernels = make();
  return kKernels ? &*kKernels : nullptr;
}
#else
const RowKernels* avx512_kernels() noexcept {
  return nullptr;
}
#endif

}  // namespace sluice::codec
