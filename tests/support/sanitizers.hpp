// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace sluice::testing {

/// What this build runs under (-D SLUICE_SANITIZE), for tests that a sanitizer's runtime defeats.
inline constexpr bool kThreadSanitizer =
    std::string_view(SLUICE_SANITIZERS).find("thread") != std::string_view::npos;
inline constexpr bool kAddressSanitizer =
    std::string_view(SLUICE_SANITIZERS).find("address") != std::string_view::npos;
/// Where what one thread reckons, in millions of cases, takes ten times as long and shows nothing new: some are enough.
inline constexpr bool kSanitized = kThreadSanitizer || kAddressSanitizer;

}  // namespace sluice::testing
