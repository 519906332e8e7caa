// SPDX-License-Identifier: MIT
#include "sluice/version.hpp"

namespace sluice {

static_assert(kVersionMajor == SLUICE_VERSION_MAJOR && kVersionMinor == SLUICE_VERSION_MINOR &&
                  kVersionPatch == SLUICE_VERSION_PATCH,
              "include/sluice/version.hpp and project(sluice VERSION ...) differ");

std::string_view version() noexcept {
  return SLUICE_VERSION_TEXT;
}

}  // namespace sluice
