// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "sluice/export.hpp"

namespace sluice {

/// The version of these headers. The build fails when it is not CMake's project version.
inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// The version of the library that is linked at run time, as "major.minor.patch".
SLUICE_API std::string_view version() noexcept;

}  // namespace sluice
