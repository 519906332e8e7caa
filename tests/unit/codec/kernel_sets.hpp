// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codec/row_kernels.hpp"

namespace sluice::test {

/// The sets of this build and processor.
inline std::vector<const codec::RowKernels*> kernel_sets() {
  std::vector<const codec::RowKernels*> sets{&codec::portable_kernels()};
  for (const codec::RowKernels* set : {codec::avx2_kernels(), codec::avx512_kernels()}) {
    if (set != nullptr) sets.push_back(set);
  }
  return sets;
}

/// Runs a suite's tests once per set.
class KernelSetTest : public testing::TestWithParam<const codec::RowKernels*> {
 protected:
  static const codec::RowKernels& kernels() { return *GetParam(); }
};

inline std::string kernel_set_name(const testing::TestParamInfo<const codec::RowKernels*>& info) {
  return info.param->name;
}

}  // namespace sluice::test
