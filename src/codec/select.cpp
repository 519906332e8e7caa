// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <string_view>

#include "codec/row_kernels.hpp"

namespace sluice::codec {
namespace {

const RowKernels& select() noexcept {
  const char* const forced = std::getenv("SLUICE_KERNELS");
  if (forced != nullptr && std::string_view(forced) == "portable") {
    return portable_kernels();
  }
  // "avx2" and anything else: all sets give the same bits, so a name that this processor or build
  // does not have costs speed at most.
  const RowKernels* const avx2 = avx2_kernels();
  return avx2 != nullptr ? *avx2 : portable_kernels();
}

}  // namespace

const RowKernels& best_kernels() noexcept {
  static const RowKernels& kernels = select();
  return kernels;
}

}  // namespace sluice::codec
