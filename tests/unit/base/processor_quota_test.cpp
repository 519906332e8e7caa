// SPDX-License-Identifier: MIT
#include "base/processor_quota.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace sluice::base {
namespace {

namespace fs = std::filesystem;

/// A directory with what a system would show in /proc and /sys.
class ProcessorQuotaTest : public testing::Test {
 protected:
  ProcessorQuotaTest() {
    std::string path = fs::temp_directory_path() / "sluice-quota-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no directory " + path);
    root_ = path;
  }
  ~ProcessorQuotaTest() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double processors() const {
    const auto quota = processor_quota(root_);
    return quota ? quota->processors : 0;
  }
  std::string group() const {
    const auto quota = processor_quota(root_);
    return quota ? quota->group : "";
  }

  fs::path root_;
};

TEST_F(ProcessorQuotaTest, NothingIsMounted) {
  EXPECT_FALSE(processor_quota(root_).has_value());
  write("proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(processor_quota(root_).has_value());
}

TEST_F(ProcessorQuotaTest, VersionTwo) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_FALSE(processor_quota(root_).has_value());
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(processors(), 2.5);
  EXPECT_NE(group(), "");
}

TEST_F(ProcessorQuotaTest, TheTightestOfAllThatAGroupIsIn) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/container/cpu.max", "800000 100000\n");
  EXPECT_DOUBLE_EQ(processors(), 8);
  const std::string container = group();
  write("sys/fs/cgroup/pod/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(processors(), 3);
  const std::string pod = group();
  EXPECT_NE(pod, container);
  // Others of the pod share it, whatever limit of their own they have above it.
  write("proc/self/cgroup", "0::/pod/other\n");
  write("sys/fs/cgroup/pod/other/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(processors(), 3);
  EXPECT_EQ(group(), pod);
}

// As a container sees it whose path starts outside.
TEST_F(ProcessorQuotaTest, APathThatIsNotThere) {
  write("proc/self/cgroup", "0::/../../system.slice/docker-1.scope\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(processors(), 0.5);
}

TEST_F(ProcessorQuotaTest, VersionOne) {
  write("proc/self/cgroup", "11:cpuset:/\n4:cpuacct,cpu:/docker/1\n2:memory:/docker/1\n0::/\n");
  write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "50000\n");
  write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(processor_quota(root_).has_value());
  write("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "200000\n");
  EXPECT_DOUBLE_EQ(processors(), 4);
}

TEST_F(ProcessorQuotaTest, WhatMakesNoSenseIsNoQuota) {
  for (const char* groups : {"", "0", "0:", "::", "0::pod", "4:cpu:", ":::::/"}) {
    write("proc/self/cgroup", std::string(groups) + "\n");
    write("sys/fs/cgroup/cpu.max", "100000 100000\n");
    EXPECT_FALSE(processor_quota(root_).has_value()) << groups;
  }
  write("proc/self/cgroup", "0::/\n");
  for (const char* limit : {"", "much", "100000", "100000 0", "0 100000", "-5 100000", "1e5x 1"}) {
    write("sys/fs/cgroup/cpu.max", limit);
    EXPECT_FALSE(processor_quota(root_).has_value()) << limit;
  }
}

}  // namespace
}  // namespace sluice::base
