// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "kernel_sets.hpp"
#include "random_rows.hpp"

namespace sluice::test {
namespace {

class Convert : public KernelSetTest {};

/// All 65,536 codes of a 16-bit format in one row.
Row every_code(DType dtype) {
  Row row(dtype, 65536, 3);
  for (int code = 0; code < 65536; ++code) {
    row.set(code, static_cast<std::uint32_t>(code));
  }
  return row;
}

TEST_P(Convert, EveryCodeSurvivesF32) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Row source = every_code(dtype);
    Row wide(DType::f32, 65536, 1);
    Row back(dtype, 65536, 5);
    kernels().convert(source.data(), dtype, wide.data(), DType::f32, 65536);
    kernels().convert(wide.data(), DType::f32, back.data(), dtype, 65536);
    for (int i = 0; i < 65536; ++i) {
      const float expected = source.value(i);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide.value(i)));
        ASSERT_EQ(back.bits(i), 0x7FFFU);
      } else {
        ASSERT_EQ(wide.bits(i), bits_from_float(expected));
        ASSERT_EQ(back.bits(i), source.bits(i));
      }
    }
  }
}

TEST_P(Convert, NarrowsBoundariesLikeSearch) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const SearchingEncoder search(dtype == DType::bf16 ? kBf16 : kF16);
    const std::vector<float> values = boundary_values(search);
    std::vector<std::uint16_t> out(values.size());
    kernels().convert(values.data(), DType::f32, out.data(), dtype,
                      static_cast<int>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out[i], search.encode(values[i])) << values[i];
    }
  }
}

TEST_P(Convert, AgreesWithPortable) {
  RandomBits random(12);
  for (int round = 0; round < 1000; ++round) {
    const int elements = static_cast<int>(random.below(150));
    const Row source = Row::random(random, kRowTypes[random.below(3)], elements,
                                   kContents[random.below(kContents.size())]);
    Row out(kRowTypes[random.below(3)], elements, random.below(32));
    Row expected(out.dtype(), elements, 0);
    kernels().convert(source.data(), source.dtype(), out.data(), out.dtype(), elements);
    codec::portable_kernels().convert(source.data(), source.dtype(), expected.data(), out.dtype(),
                                      elements);
    ASSERT_TRUE(out.guards_intact());
    for (int i = 0; i < elements; ++i) {
      ASSERT_TRUE(same_element(out, expected, i)) << "round " << round << ", element " << i;
    }
    if (source.dtype() == out.dtype()) {
      ASSERT_EQ(std::memcmp(source.data(), out.data(), out.bytes()), 0);
    }
  }
}

class FanOut : public KernelSetTest {};

TEST_P(FanOut, CopiesToEveryDestination) {
  RandomBits random(13);
  for (int round = 0; round < 300; ++round) {
    const int elements = static_cast<int>(random.below(round % 10 == 0 ? 9000 : 200));
    const Row source = Row::random(random, DType::bf16, elements, Content::bits);
    const std::uint32_t count = random.below(9);
    std::vector<Row> rows;
    std::vector<void*> destinations;
    for (std::uint32_t i = 0; i < count; ++i) {
      rows.emplace_back(DType::bf16, elements, random.below(32));
    }
    for (Row& row : rows) {
      destinations.push_back(row.data());
    }
    kernels().fan_out(source.data(), source.bytes(), destinations.data(), static_cast<int>(count),
                      round % 2 == 0);
    for (const Row& row : rows) {
      ASSERT_TRUE(row.guards_intact());
      ASSERT_EQ(std::memcmp(row.data(), source.data(), source.bytes()), 0);
    }
  }
}

TEST_P(FanOut, StreamsToAlignedDestinations) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{32},
                                  std::size_t{4096}, std::size_t{4127}, std::size_t{14336}}) {
    std::vector<std::byte> source(bytes + 1);
    for (std::size_t i = 0; i < bytes; ++i) {
      source[i] = static_cast<std::byte>(i * 7 + i / 256);
    }
    std::vector<Line> memory(bytes / 64 + 2, Line{});
    auto* const first = memory.front().bytes;
    std::array<void*, 1> destinations{first};
    kernels().fan_out(source.data(), bytes, destinations.data(), 1, true);
    kernels().finish_streaming();
    EXPECT_EQ(std::memcmp(first, source.data(), bytes), 0) << bytes;
    EXPECT_EQ(first[bytes], std::byte{0}) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Convert, testing::ValuesIn(kernel_sets()), kernel_set_name);
INSTANTIATE_TEST_SUITE_P(Kernels, FanOut, testing::ValuesIn(kernel_sets()), kernel_set_name);

}  // namespace
}  // namespace sluice::test
