// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "codec/row_kernels.hpp"

namespace sluice::test {
namespace {

constexpr Codec fp8(ScaleForm form, int group) {
  return {CodecKind::fp8, form, group};
}

TEST(Sizes, RowsOfAllKinds) {
  EXPECT_EQ(codec::row_bytes({CodecKind::bf16}, 7168), 14336U);
  EXPECT_EQ(codec::row_bytes({CodecKind::f16}, 7168), 14336U);
  EXPECT_EQ(codec::row_bytes({CodecKind::f32}, 7168), 28672U);
  EXPECT_EQ(codec::row_bytes({CodecKind::fp8}, 7168), 7168U);
  EXPECT_EQ(codec::row_dtype({CodecKind::bf16}), DType::bf16);
  EXPECT_EQ(codec::row_dtype({CodecKind::f16}), DType::f16);
  EXPECT_EQ(codec::row_dtype({CodecKind::f32}), DType::f32);
  EXPECT_EQ(codec::row_dtype({CodecKind::fp8}), DType::e4m3);
}

TEST(Sizes, ScalesIncludeAShortLastGroup) {
  EXPECT_EQ(codec::scale_count({CodecKind::bf16}, 7168), 0);
  EXPECT_EQ(codec::scale_bytes({CodecKind::bf16}, 7168), 0U);
  EXPECT_EQ(codec::scale_count(fp8(ScaleForm::f32, 128), 7168), 56);
  EXPECT_EQ(codec::scale_bytes(fp8(ScaleForm::f32, 128), 7168), 224U);
  EXPECT_EQ(codec::scale_bytes(fp8(ScaleForm::pow2, 128), 7184), 228U);
  EXPECT_EQ(codec::scale_bytes(fp8(ScaleForm::ue8m0, 128), 7168), 56U);
  EXPECT_EQ(codec::scale_bytes(fp8(ScaleForm::ue8m0, 128), 7184), 60U);
  EXPECT_EQ(codec::scale_bytes(fp8(ScaleForm::ue8m0, 32), 16), 4U);
  EXPECT_EQ(codec::scale_count(fp8(ScaleForm::f32, 256), 0), 0);
}

TEST(Sizes, OnlyNamedGroupsAndKindsAreValid) {
  for (const int group : {32, 64, 128, 256}) {
    for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0}) {
      EXPECT_TRUE(codec::valid(fp8(form, group)));
    }
  }
  for (const int group : {-128, 0, 1, 16, 48, 100, 512}) {
    EXPECT_FALSE(codec::valid(fp8(ScaleForm::f32, group))) << group;
  }
  EXPECT_FALSE(codec::valid(fp8(static_cast<ScaleForm>(3), 128)));
  EXPECT_FALSE(codec::valid({static_cast<CodecKind>(4)}));
  // The fp8 options mean nothing to other kinds.
  EXPECT_TRUE(codec::valid({CodecKind::bf16, ScaleForm::f32, 0}));
}

/// Exits with 0 if the kernels that SLUICE_KERNELS=`name` selects are called `expected`.
[[noreturn]] void exit_telling_selection(const char* name, std::string_view expected) {
  setenv("SLUICE_KERNELS", name, 1);
  std::_Exit(std::string_view(codec::best_kernels().name) == expected ? 0 : 1);
}

TEST(Select, EnvironmentForcesASet) {
  // Each child selects anew: the choice is made once per process.
  const char* const fastest = codec::avx512_kernels() != nullptr ? "avx512"
                              : codec::avx2_kernels() != nullptr ? "avx2"
                                                                 : "portable";
  EXPECT_EXIT(exit_telling_selection("portable", "portable"), testing::ExitedWithCode(0), "");
  const char* const avx2 = codec::avx2_kernels() != nullptr ? "avx2" : "portable";
  EXPECT_EXIT(exit_telling_selection("avx2", avx2), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_telling_selection("avx512", fastest), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_telling_selection("", fastest), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::test
