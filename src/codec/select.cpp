// SPDX-License-Identifier: MIT
#include "base/environment.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::codec {
namespace {

const RowKernels& select() {
  if (base::Environment::at_start().get(base::Variable::kernels) == "portable") {
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
