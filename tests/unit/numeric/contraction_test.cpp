// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

namespace sluice::test {
namespace {

// (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, of which a float keeps 1 + 2^-11: what is left of the product
// after the addition tells whether it was rounded on the way.
volatile float factor = 1.0F + 0x1p-12F;
volatile float addend = -(1.0F + 0x1p-11F);

TEST(Contraction, ProductsAreRoundedBeforeTheyAreAdded) {
  const float a = factor;
  const float c = addend;
  EXPECT_EQ(a * a + c, 0.0F);
  EXPECT_EQ(c + a * a, 0.0F);
}

TEST(Contraction, WrittenFmaIsFused) {
  const float a = factor;
  const float c = addend;
  EXPECT_EQ(std::fma(a, a, c), 0x1p-24F);
}

}  // namespace
}  // namespace sluice::test
