// SPDX-License-Identifier: MIT
#include "nccl_library.hpp"

#include <gtest/gtest.h>

#include "nccl_kernels.hpp"

namespace sluice::bench {
namespace {

TEST(NcclLibrary, SaysWhatIsMissingAndWhereItLooked) {
  const Result<NcclLibrary> nccl = NcclLibrary::load("/nowhere/libnccl.so.2");
  ASSERT_FALSE(nccl.ok());
  EXPECT_EQ(nccl.status().code(), StatusCode::unavailable);
  EXPECT_NE(nccl.status().message().find("/nowhere/libnccl.so.2"), std::string::npos);
  EXPECT_NE(nccl.status().message().find("--nccl"), std::string::npos);
}

TEST(NcclLibrary, RefusesAnotherLibrary) {
  const Result<NcclLibrary> nccl = NcclLibrary::load("libc.so.6");
  ASSERT_FALSE(nccl.ok());
  EXPECT_NE(nccl.status().message().find("ncclGetVersion"), std::string::npos);
}

TEST(RecordForm, KeepsPiecesApartAndAligned) {
  for (const bool fp8 : {false, true}) {
    for (const int hidden : {16, 144, 7168, 7184}) {
      for (const int top_k : {1, 3, 8, 32}) {
        const nccl::RecordForm form = nccl::RecordForm::of(hidden, top_k, fp8);
        EXPECT_GE(form.scales_at, form.row_bytes);
        EXPECT_GE(form.meta_at, form.scales_at + 4 * form.scale_words);
        EXPECT_GE(form.stride, form.meta_at + nccl::RecordForm::kMetaHead + 8 * top_k);
        EXPECT_EQ((form.scales_at | form.meta_at | form.stride) % 16, 0);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::bench
