// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "../numeric/caller_mode.hpp"
#include "kernel_sets.hpp"
#include "numeric/float_environment.hpp"
#include "random_rows.hpp"

namespace sluice::test {
namespace {

constexpr int kRowElements = 1040;

/// What all kernels make of rows full of subnormals and halfway cases, as bytes.
std::vector<std::byte> all_results(const codec::RowKernels& kernels) {
  std::vector<std::byte> result;
  const auto append = [&](const Row& row) {
    result.insert(result.end(), row.data(), row.data() + row.bytes());
  };
  RandomBits random(31);
  for (const Content content : {Content::subnormal, Content::ordinary}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      const Row first = Row::random(random, dtype, kRowElements, content);
      const Row second = Row::random(random, dtype, kRowElements, content);
      for (const DType out_dtype : {DType::bf16, DType::f16, DType::f32}) {
        Row converted(out_dtype, kRowElements, 0);
        kernels.convert(first.data(), dtype, converted.data(), out_dtype, kRowElements);
        append(converted);
        Row summed(out_dtype, kRowElements, 0);
        const std::array terms{codec::SumTerm{first.data(), 0.3F},
                               codec::SumTerm{second.data(), 0.7F}};
        codec::SumArgs args;
        args.terms = terms;
        args.term_dtype = dtype;
        args.weighted = true;
        args.out = summed.data();
        args.out_dtype = out_dtype;
        args.elements = kRowElements;
        kernels.sum(args);
        append(summed);
      }
      for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0}) {
        const Codec codec{CodecKind::fp8, form, 128};
        Row codes(DType::e4m3, kRowElements, 0);
        Row scales(DType::e4m3, static_cast<int>(codec::scale_bytes(codec, kRowElements)), 0);
        kernels.quantise(first.data(), dtype, codec, kRowElements,
                         reinterpret_cast<std::uint8_t*>(codes.data()), scales.data());
        append(codes);
        append(scales);
      }
    }
  }
  return result;
}

class Environment : public KernelSetTest {};

TEST_P(Environment, CallersModeDoesNotReachTheKernels) {
  const std::vector<std::byte> expected = all_results(kernels());
  const HostileMode hostile;
  const std::uint64_t callers_mode = HostileMode::mode();
  {
    const numeric::FloatEnvironment environment;
    EXPECT_TRUE(all_results(kernels()) == expected);
  }
  EXPECT_EQ(HostileMode::mode(), callers_mode);
  // Without the guard the mode does change results: the comparison above can fail.
  EXPECT_FALSE(all_results(kernels()) == expected);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Environment, testing::ValuesIn(kernel_sets()), kernel_set_name);

}  // namespace
}  // namespace sluice::test
