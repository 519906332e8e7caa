// SPDX-License-Identifier: MIT
#include "memory/cuda/network_memory.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "memory/cuda/device_memory.hpp"

namespace sluice::memory {
namespace {

#define SLUICE_TAKE_NETWORK_MEMORY(memory, bytes)                                                  \
  if (const auto unit = DeviceMemory::granularity(0); !unit.ok())                                  \
    GTEST_SKIP() << "no GPU in this machine: " << unit.status().to_string();                       \
  const auto memory = NetworkMemory::create(0, bytes);                                             \
  if (!(memory).ok()) {                                                                            \
    ASSERT_EQ((memory).status().code(), StatusCode::unavailable) << (memory).status().to_string(); \
    GTEST_SKIP() << (memory).status().to_string();                                                 \
  }                                                                                                \
  static_assert(true)

std::vector<std::byte> read(const NetworkMemory& memory, std::size_t at, std::size_t bytes) {
  std::vector<std::byte> seen(bytes, std::byte{0xEE});
  EXPECT_TRUE(NetworkMemory::copy(0, seen.data(), memory.base() + at, bytes));
  return seen;
}

TEST(NetworkMemory, IsZeroAndRoundedUp) {
  SLUICE_TAKE_NETWORK_MEMORY(memory, 70'001);
  EXPECT_EQ(memory->device(), 0);
  EXPECT_GE(memory->bytes(), 70'001U);
  EXPECT_EQ(read(*memory, 0, memory->bytes()), std::vector<std::byte>(memory->bytes()));
}

TEST(NetworkMemory, WhatWasWrittenIsSeenOnceItIsFlushed) {
  SLUICE_TAKE_NETWORK_MEMORY(memory, 65'536);
  const std::vector<std::byte> written(1000, std::byte{7});
  ASSERT_TRUE(NetworkMemory::copy(0, memory->base() + 500, written.data(), written.size()));
  EXPECT_TRUE(memory->flush().ok());
  EXPECT_EQ(read(*memory, 500, 1000), written);
  EXPECT_EQ(read(*memory, 499, 1)[0], std::byte{0});
  EXPECT_EQ(read(*memory, 1500, 1)[0], std::byte{0});
}

TEST(NetworkMemory, ItsDmabufHasAllOfIt) {
  SLUICE_TAKE_NETWORK_MEMORY(memory, 70'001);
  if (!memory->dmabuf().open()) GTEST_SKIP() << "the driver exports no dmabufs";
  EXPECT_EQ(::lseek(memory->dmabuf().number(), 0, SEEK_END), static_cast<off_t>(memory->bytes()));
}

TEST(NetworkMemory, NoSuchGpu) {
  if (const auto unit = DeviceMemory::granularity(0); !unit.ok()) {
    GTEST_SKIP() << "no GPU in this machine: " << unit.status().to_string();
  }
  EXPECT_FALSE(NetworkMemory::create(4096, 65'536).ok());
}

TEST(NetworkMemory, MoreThanThereIs) {
  if (const auto unit = DeviceMemory::granularity(0); !unit.ok()) {
    GTEST_SKIP() << "no GPU in this machine: " << unit.status().to_string();
  }
  const auto memory = NetworkMemory::create(0, std::size_t{1} << 45);
  ASSERT_FALSE(memory.ok());
  if (memory.status().code() == StatusCode::unavailable) {
    GTEST_SKIP() << memory.status().to_string();
  }
  EXPECT_EQ(memory.status().code(), StatusCode::out_of_memory) << memory.status().to_string();
}

}  // namespace
}  // namespace sluice::memory
