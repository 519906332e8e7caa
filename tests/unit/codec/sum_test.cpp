// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "kernel_sets.hpp"
#include "random_rows.hpp"

namespace sluice::test {
namespace {

/// The bits of `value` rounded to `dtype`, by search.
std::uint32_t reference_bits(float value, DType dtype) {
  static const SearchingEncoder bf16(kBf16);
  static const SearchingEncoder f16(kF16);
  return dtype == DType::f32    ? bits_from_float(value)
         : dtype == DType::bf16 ? bf16.encode(value)
                                : f16.encode(value);
}

/// The definition, one element at a time.
float reference_sum(const codec::SumArgs& args, const std::vector<Row>& terms,
                    const std::vector<Row>& extras, int index) {
  float sum = 0.0F;
  const auto add = [&](float& to, std::size_t term) {
    const float value = terms[term].value(index);
    to = args.weighted ? std::fma(args.terms[term].weight, value, to) : to + value;
  };
  if (args.groups.empty()) {
    for (std::size_t term = 0; term < terms.size(); ++term) add(sum, term);
  }
  std::size_t term = 0;
  for (const std::uint8_t group : args.groups) {
    float partial = 0.0F;
    for (const std::size_t end = term + group; term < end; ++term) add(partial, term);
    Row rounded(args.term_dtype, 1, 0);
    rounded.set(0, reference_bits(partial, args.term_dtype));
    sum = sum + rounded.value(0);
  }
  if (args.scaled) {
    sum = sum * args.scale;
  }
  for (const Row& extra : extras) {
    sum = sum + extra.value(index);
  }
  return sum;
}

float random_weight(RandomBits& random) {
  switch (random.below(16)) {
    case 0: return 0.0F;
    case 1: return -0.0F;
    case 2: return float_from_bits(random());
    case 3: return float_from_bits(random.below(0x0080'0000U));
    default: return float_from_bits(0x3E00'0000U + random.below(0x0200'0000U));
  }
}

class Sum : public KernelSetTest {};

TEST_P(Sum, IsTheDefinitionForRandomRows) {
  RandomBits random(11);
  for (int round = 0; round < 1500; ++round) {
    const int elements = static_cast<int>(random.below(round % 50 == 0 ? 7300 : 200));
    const DType dtype = kRowTypes[random.below(3)];
    const Content content = kContents[random.below(kContents.size())];
    std::vector<Row> term_rows;
    std::vector<codec::SumTerm> terms;
    const std::uint32_t term_count = round % 40 == 1 ? 100 : random.below(10);
    for (std::uint32_t i = 0; i < term_count; ++i) {
      term_rows.push_back(Row::random(random, dtype, elements, content));
    }
    for (const Row& row : term_rows) {
      terms.push_back({row.data(), random_weight(random)});
    }
    std::vector<Row> extra_rows;
    std::vector<codec::SumExtra> extras;
    for (std::uint32_t i = random.below(3); i > 0; --i) {
      extra_rows.push_back(Row::random(random, kRowTypes[random.below(3)], elements, content));
    }
    for (const Row& row : extra_rows) {
      extras.push_back({row.data(), row.dtype()});
    }
    Row out(kRowTypes[random.below(3)], elements, random.below(32));
    codec::SumArgs args;
    args.terms = terms;
    args.term_dtype = dtype;
    args.weighted = random.below(2) != 0;
    std::vector<std::uint8_t> groups;
    if (args.weighted && random.below(2) != 0) {
      for (std::uint32_t left = term_count; left > 0; left -= groups.back()) {
        groups.push_back(static_cast<std::uint8_t>(1 + random.below(left)));
      }
    }
    args.groups = groups;
    args.scaled = random.below(3) == 0;
    args.scale = random_weight(random);
    args.extras = extras;
    args.out = out.data();
    args.out_dtype = out.dtype();
    args.elements = elements;
    kernels().sum(args);
    ASSERT_TRUE(out.guards_intact());
    for (int i = 0; i < elements; ++i) {
      const float expected = reference_sum(args, term_rows, extra_rows, i);
      if (out.dtype() == DType::f32 && std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out.value(i)));
      } else {
        ASSERT_EQ(out.bits(i), reference_bits(expected, out.dtype()))
            << "round " << round << ", element " << i << " of " << elements;
      }
    }
  }
}

TEST_P(Sum, OfNothingIsPositiveZero) {
  for (const DType dtype : kRowTypes) {
    Row out(dtype, 75, 1);
    codec::SumArgs args;
    args.out = out.data();
    args.out_dtype = dtype;
    args.elements = 75;
    kernels().sum(args);
    for (int i = 0; i < 75; ++i) {
      ASSERT_EQ(out.bits(i), 0U);
    }
    ASSERT_TRUE(out.guards_intact());
  }
}

TEST_P(Sum, OfOneNegativeZeroIsPositiveZero) {
  Row row(DType::bf16, 37, 0);
  for (int i = 0; i < 37; ++i) {
    row.set(i, 0x8000);
  }
  const std::array terms{codec::SumTerm{row.data(), 1.0F}};
  for (const bool weighted : {false, true}) {
    Row out(DType::bf16, 37, 0);
    codec::SumArgs args;
    args.terms = terms;
    args.weighted = weighted;
    args.out = out.data();
    args.elements = 37;
    kernels().sum(args);
    for (int i = 0; i < 37; ++i) {
      ASSERT_EQ(out.bits(i), 0U);
    }
  }
}

/// See contraction_test.cpp for the numbers: scaling and extra must not be fused into one
/// operation, weight and term must be.
TEST_P(Sum, FusesExactlyWhatTheDefinitionFuses) {
  constexpr int kElements = 83;
  Row row(DType::f32, kElements, 0);
  Row negative(DType::f32, kElements, 0);
  Row out(DType::f32, kElements, 0);
  for (int i = 0; i < kElements; ++i) {
    row.set(i, bits_from_float(1.0F + 0x1p-12F));
    negative.set(i, bits_from_float(-(1.0F + 0x1p-11F)));
  }
  codec::SumArgs args;
  args.term_dtype = DType::f32;
  args.out = out.data();
  args.out_dtype = DType::f32;
  args.elements = kElements;

  const std::array one{codec::SumTerm{row.data(), 1.0F}};
  const std::array extra{codec::SumExtra{negative.data(), DType::f32}};
  args.terms = one;
  args.scaled = true;
  args.scale = 1.0F + 0x1p-12F;
  args.extras = extra;
  kernels().sum(args);
  for (int i = 0; i < kElements; ++i) {
    ASSERT_EQ(out.value(i), 0.0F) << i;
  }

  const std::array two{codec::SumTerm{negative.data(), 1.0F},
                       codec::SumTerm{row.data(), 1.0F + 0x1p-12F}};
  args.terms = two;
  args.weighted = true;
  args.scaled = false;
  args.extras = {};
  kernels().sum(args);
  for (int i = 0; i < kElements; ++i) {
    ASSERT_EQ(out.value(i), 0x1p-24F) << i;
  }
}

/// Large, small, minus large: any other order of the terms gives another result.
TEST_P(Sum, AddsTermsInTheirOrder) {
  constexpr int kElements = 70;
  const std::array values{0x1p24F, 1.0F, -0x1p24F, 1.0F};
  std::vector<Row> rows;
  for (const float value : values) {
    rows.emplace_back(DType::f32, kElements, 0);
    for (int i = 0; i < kElements; ++i) {
      rows.back().set(i, bits_from_float(value));
    }
  }
  std::vector<codec::SumTerm> terms;
  for (const Row& row : rows) {
    terms.push_back({row.data(), 1.0F});
  }
  for (const bool weighted : {false, true}) {
    Row out(DType::f32, kElements, 0);
    codec::SumArgs args;
    args.terms = terms;
    args.term_dtype = DType::f32;
    args.weighted = weighted;
    args.out = out.data();
    args.out_dtype = DType::f32;
    args.elements = kElements;
    kernels().sum(args);
    for (int i = 0; i < kElements; ++i) {
      ASSERT_EQ(out.value(i), 1.0F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sum, testing::ValuesIn(kernel_sets()), kernel_set_name);

}  // namespace
}  // namespace sluice::test
