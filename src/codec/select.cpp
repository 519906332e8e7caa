// SPDX-License-Identifier: MIT
#include "base/environment.hpp"
#include "base/log.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::codec {
namespace {

const RowKernels& select() {
  // All sets give the same bits, so a name that this processor or build does not have costs speed at
  // most.
  const auto name = base::Environment::at_start().get(base::Variable::kernels);
  if (name && !name->empty() && name != "portable" && name != "avx2" && name != "avx512") {
    base::log_warn("SLUICE_KERNELS = '{}', expected portable, avx2 or avx512: not heeded", *name);
  }
  if (name == "portable") return portable_kernels();
  if (avx512_kernels() != nullptr && name != "avx2") return *avx512_kernels();
  return avx2_kernels() != nullptr ? *avx2_kernels() : portable_kernels();
}

}  // namespace

const RowKernels& best_kernels() noexcept {
  static const RowKernels& kernels = select();
  return kernels;
}

}  // namespace sluice::codec
