// SPDX-License-Identifier: MIT
#include "sluice/version.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Version, LibraryAndHeadersAgree) {
  const std::string expected = std::to_string(sluice::kVersionMajor) + "." +
                               std::to_string(sluice::kVersionMinor) + "." +
                               std::to_string(sluice::kVersionPatch);
  EXPECT_EQ(sluice::version(), expected);
}

}  // namespace
