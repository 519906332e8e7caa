// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/types.hpp"
#include "support/findings.hpp"

namespace sluice::support {

/// Adds a finding with the rule that is checked, what was expected and what was seen.
void expect_equal(Findings& findings, const char* rule, const char* what, std::int64_t expected,
                  std::int64_t seen);
void expect_true(Findings& findings, const char* rule, const std::string& what, bool seen);

/// Compares a 1- or 2-dimensional view of i32, i64 or f32 (bit for bit, NaN equals NaN) with
/// expected values in row-major order; the shape must match too. The finding names the row, the
/// element, what was expected and what was seen.
void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<std::int32_t>& expected, ConstTensorView seen,
                   std::int64_t columns = 0);
void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<std::int64_t>& expected, ConstTensorView seen,
                   std::int64_t columns = 0);
void expect_values(Findings& findings, const char* rule, const char* what,
                   const std::vector<float>& expected, ConstTensorView seen,
                   std::int64_t columns = 0);

/// The first element at which two rows of `count` elements differ: equal bits, or both NaN. -1 if
/// none does. `seen_stride` is in elements.
std::int64_t first_difference(DType dtype, const std::byte* expected, const std::byte* seen,
                              std::size_t count, std::int64_t seen_stride = 1);
/// An element as text: its value and its bits.
std::string element_text(DType dtype, const std::byte* element);

/// One row of elements against expected ones; `row_name` says which ("row 3 (source rank 1...)").
/// Returns whether they are equal.
bool expect_row(Findings& findings, const char* rule, const std::string& row_name, DType dtype,
                const std::byte* expected, const std::byte* seen, std::size_t count,
                std::int64_t seen_stride = 1);

}  // namespace sluice::support
