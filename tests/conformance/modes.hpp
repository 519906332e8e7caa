// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "conformance/scenario.hpp"

namespace sluice::conformance {

/// Fails the test with what the ranks found; `what` says which of several runs it was.
inline void expect_clean(const std::string& failures, const std::string& what = "") {
  if (!failures.empty()) ADD_FAILURE() << what << (what.empty() ? "" : ":\n") << failures;
}

/// A suite that runs in both modes.
class ModeTest : public ::testing::TestWithParam<Mode> {
 public:
  static std::string name(const ::testing::TestParamInfo<Mode>& info) {
    return std::string(to_string(info.param));
  }

 protected:
  /// 4 ranks, 8 experts, K 3, H 48, M 8, in this mode.
  Scenario small() const {
    Scenario scenario;
    scenario.ranks = 4;
    scenario.shape = Shape{8, 3, 48, 8};
    scenario.options.mode = GetParam();
    scenario.options.deadline = std::chrono::seconds(40);
    scenario.options.first_deadline = std::chrono::seconds(40);
    return scenario;
  }
};

/// A suite that runs in both modes and all layouts.
class LayoutTest : public ::testing::TestWithParam<std::tuple<Mode, Layout>> {
 public:
  static std::string name(const ::testing::TestParamInfo<std::tuple<Mode, Layout>>& info) {
    return std::string(to_string(std::get<0>(info.param))) + "_" +
           std::string(to_string(std::get<1>(info.param)));
  }

 protected:
  Layout layout() const { return std::get<1>(GetParam()); }
  Scenario small() const {
    Scenario scenario;
    scenario.ranks = 4;
    scenario.shape = Shape{8, 3, 48, 8};
    scenario.options.mode = std::get<0>(GetParam());
    scenario.options.layout = layout();
    scenario.options.deadline = std::chrono::seconds(40);
    scenario.options.first_deadline = std::chrono::seconds(40);
    return scenario;
  }
};

inline auto both_modes() {
  return ::testing::Values(Mode::latency, Mode::throughput);
}
inline auto all_layouts() {
  return ::testing::Combine(
      both_modes(),
      ::testing::Values(Layout::rank_major, Layout::expert_major, Layout::expert_slab));
}

}  // namespace sluice::conformance
