// SPDX-License-Identifier: MIT
#include "engine/cuda/device_buffers.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "memory/cuda/pinned_memory.hpp"
#include "support/lone_ferry.hpp"

namespace sluice::engine::cuda {
namespace {

constexpr std::size_t kFirst = std::size_t{1} << 20;

class DeviceBuffersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::LoneFerry::has_gpu()) GTEST_SKIP() << "no GPU";
    auto made = memory::DevicePool::create(0);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    pool_ = std::move(made).value();
  }
  std::shared_ptr<memory::DevicePool> pool_;
};

TEST_F(DeviceBuffersTest, AreUsedAgain) {
  DeviceBuffers buffers(pool_);
  const std::shared_ptr<void> held = buffers.take(kFirst);
  std::set<void*> seen;
  for (int call = 0; call < 10; ++call) {
    const std::shared_ptr<void> each = buffers.take(kFirst);
    ASSERT_NE(each, nullptr);
    EXPECT_NE(each, held);
    seen.insert(each.get());
  }
  EXPECT_EQ(seen.size(), 1U);
}

// Each a little larger than the one before, to eight times the first: those that are too small must not add up.
TEST_F(DeviceBuffersTest, ThatGrowAreFew) {
  DeviceBuffers buffers(pool_);
  std::set<void*> seen;
  for (std::size_t bytes = kFirst; bytes < 8 * kFirst; bytes += kFirst / 64) {
    const std::shared_ptr<void> each = buffers.take(bytes);
    ASSERT_NE(each, nullptr);
    ASSERT_TRUE(pool_->write(each.get(), nullptr, bytes).ok());
    seen.insert(each.get());
  }
  EXPECT_LE(seen.size(), 7U);
}

TEST_F(DeviceBuffersTest, PinnedMemoryServesWhatNeedsHalfOfItToo) {
  const std::size_t large = memory::pinned_bytes(std::size_t{24} << 20);
  void* const first = (*memory::take_pinned(large)).get();
  const auto taken = [](std::size_t bytes) {
    auto made = memory::take_pinned(bytes);
    return made.ok() ? std::move(made).value() : nullptr;
  };
  EXPECT_EQ(taken(large - (std::size_t{4} << 20)).get(), first);
  EXPECT_NE(taken(large / 4).get(), first);
  EXPECT_EQ(taken(large).get(), first);  // It has not become smaller.
}

}  // namespace
}  // namespace sluice::engine::cuda
