// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace sluice::base {

/// Of the files in include/ and src/ that this was built of, 16 digits. Made with each build, by cmake/source_hash.cmake.
std::string_view source_hash() noexcept;

}  // namespace sluice::base
