// SPDX-License-Identifier: MIT
#include "support/compare.hpp"

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "reference/small_float.hpp"

namespace sluice::support {

namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::e4m3;
}

bool both_nan(DType dtype, const std::byte* a, const std::byte* b) {
  return is_float(dtype) && std::isnan(reference::load(dtype, a, 0)) &&
         std::isnan(reference::load(dtype, b, 0));
}

template <typename T>
void compare_values(Findings& findings, const char* rule, const char* what, DType dtype,
                    const std::vector<T>& expected, const ConstTensorView& seen,
                    std::int64_t columns) {
  const int dims = columns > 0 ? 2 : 1;
  const auto count = static_cast<std::int64_t>(expected.size());
  const std::int64_t rows = columns > 0 ? count / columns : count;
  if (seen.dtype != dtype || seen.dims != dims || seen.shape[0] != rows ||
      (dims == 2 && seen.shape[1] != columns)) {
    findings.add(fmt::format("{}: {} is {} [{}, {}] ({} dims), expected {} [{}, {}] ({} dims)",
                             rule, what, to_string(seen.dtype), seen.shape[0], seen.shape[1],
                             seen.dims, to_string(dtype), rows, columns, dims));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = columns > 0 ? i / columns : i;
    const std::int64_t column = columns > 0 ? i % columns : 0;
    const std::int64_t place = row * seen.strides[0] + (dims == 2 ? column * seen.strides[1] : 0);
    const auto* element =
        static_cast<const std::byte*>(seen.data) + place * static_cast<std::int64_t>(sizeof(T));
    const auto* wanted = reinterpret_cast<const std::byte*>(&expected[static_cast<std::size_t>(i)]);
    if (std::memcmp(element, wanted, sizeof(T)) == 0 || both_nan(dtype, wanted, element)) continue;
    findings.add(fmt::format("{}: {}[{}, {}]: expected {}, seen {}", rule, what, row, column,
                             element_text(dtype, wanted), element_text(dtype, element)));
    return;
  }
}

}  // namespace

void expect_equal(Findings& findings, const char* rule, const char* what, std::int64_t expected,
                  std::int64_t seen) {
  if (expected == seen) return;
  findings.add(fmt::format("{}: {}: expected {}, seen {}", rule, what, expected, seen));
}

void expect_true(Findings& findings, const char* rule, const std::string& what, bool seen) {
  if (!seen) findings.add(fmt::format("{}: {}", rule, what));
}

void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<std::int32_t>& expected, ConstTensorView seen,
                   std::int64_t columns) {
  compare_values(findings, rule, what, DType::i32, expected, seen, columns);
}
void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<std::int64_t>& expected, ConstTensorView seen,
                   std::int64_t columns) {
  compare_values(findings, rule, what, DType::i64, expected, seen, columns);
}
void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<float>& expected, ConstTensorView seen, std::int64_t columns) {
  compare_values(findings, rule, what, DType::f32, expected, seen, columns);
}

std::int64_t first_difference(DType dtype, const std::byte* expected, const std::byte* seen,
                              std::size_t count, std::int64_t seen_stride) {
  const std::size_t bytes = reference::bytes_of(dtype);
  if (seen_stride == 1 && std::memcmp(expected, seen, count * bytes) == 0) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* wanted = expected + i * bytes;
    const std::byte* element =
        seen + static_cast<std::int64_t>(i) * seen_stride * static_cast<std::int64_t>(bytes);
    if (std::memcmp(wanted, element, bytes) != 0 && !both_nan(dtype, wanted, element)) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

std::string element_text(DType dtype, const std::byte* element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, reference::bytes_of(dtype));
  if (is_float(dtype)) {
    return fmt::format("{} (0x{:x})", reference::load(dtype, element, 0), bits);
  }
  if (dtype == DType::i32) return fmt::format("{}", static_cast<std::int32_t>(bits));
  return fmt::format("{}", static_cast<std::int64_t>(bits));
}

bool expect_row(Findings& findings, const char* rule, const std::string& row_name, DType dtype,
                const std::byte* expected, const std::byte* seen, std::size_t count,
                std::int64_t seen_stride) {
  const std::int64_t at = first_difference(dtype, expected, seen, count, seen_stride);
  if (at < 0) return true;
  const auto bytes = static_cast<std::int64_t>(reference::bytes_of(dtype));
  findings.add(fmt::format("{}: {}, element {} ({}): expected {}, seen {}", rule, row_name, at,
                           to_string(dtype), element_text(dtype, expected + at * bytes),
                           element_text(dtype, seen + at * seen_stride * bytes)));
  return false;
}

}  // namespace sluice::support
