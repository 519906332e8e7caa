// SPDX-License-Identifier: MIT
//
// Which memory of GPUs an endpoint of libfabric takes, and how: by what its provider grants, which is
// played (gpu_provider.hpp).
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/deadline.hpp"
#include "support/sanitizers.hpp"
#include "transport/libfabric/endpoint.hpp"
#include "unit/transport/gpu_provider.hpp"

namespace sluice::transport {
namespace {

using gpu_provider::Grants;
using gpu_provider::registrations;

#if defined(FI_MR_DMABUF)
constexpr bool kDmabuf = true;
#else
constexpr bool kDmabuf = false;  // libfabric before 1.20, or its headers.
#endif

class DeviceMemoryOfProvider : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sluice::testing::kThreadSanitizer) {
      GTEST_SKIP() << "the thread sanitizer sees races in libfabric, which is not instrumented";
    }
  }
  std::unique_ptr<Endpoint> open(const Grants& grants, int rank = 0, int rails = 1) {
    const Result<Library> played = gpu_provider::library(grants);
    if (!played.ok()) {
      why_not_ = played.status().to_string();
      return nullptr;
    }
    libraries_.push_back(std::make_unique<Library>(*played));
    LibfabricSettings settings;
    settings.providers = {"tcp", "net"};
    settings.address = "127.0.0.1";
    settings.rails = rails;
    settings.device_memory = true;
    auto endpoint = LibfabricEndpoint::open(*libraries_.back(), rank, 2, settings);
    if (endpoint.ok()) return std::move(*endpoint);
    why_not_ = endpoint.status().to_string();
    return nullptr;
  }
  DeviceRegion region(int rank = 0) {
    DeviceRegion region;
    region.base = memory_[static_cast<std::size_t>(rank)].data();
    region.bytes = memory_[0].size();
    region.device = 3;
    region.dmabuf = 77;  // Only looked at.
    region.dmabuf_offset = 4096;
    return region;
  }
  void expect_host_memory_only(Endpoint& endpoint) {
    EXPECT_FALSE(endpoint.traits().device_memory);
    EXPECT_EQ(endpoint.add_device_region(region()).status().code(), StatusCode::unavailable);
    EXPECT_TRUE(registrations().empty());
    EXPECT_EQ(*endpoint.add_region(memory_[0].data(), 4096), 0);
  }

  std::vector<std::byte> memory_[2] = {std::vector<std::byte>(65536),
                                       std::vector<std::byte>(65536)};
  std::vector<std::unique_ptr<Library>> libraries_;
  std::string why_not_;
};

#define SLUICE_OPEN(endpoint, ...)         \
  const auto endpoint = open(__VA_ARGS__); \
  if (!(endpoint)) GTEST_SKIP() << why_not_

TEST_F(DeviceMemoryOfProvider, IsRegisteredByItsDmabuf) {
  if (!kDmabuf)
    GTEST_SKIP() << "libfabric " << FI_MAJOR_VERSION << '.' << FI_MINOR_VERSION
                 << " has no dmabufs: expected 1.20 or later";
  SLUICE_OPEN(endpoint, Grants{});
  EXPECT_TRUE(endpoint->traits().device_memory);
  EXPECT_EQ(*endpoint->add_device_region(region()), 0);
  ASSERT_EQ(registrations().size(), 1U);
  const gpu_provider::Registration& seen = registrations()[0];
  EXPECT_TRUE(seen.by_dmabuf);
  EXPECT_TRUE(seen.of_cuda);
  EXPECT_EQ(seen.device, 3);
  EXPECT_EQ(seen.base, memory_[0].data());
  EXPECT_EQ(seen.bytes, memory_[0].size());
  EXPECT_EQ(seen.file, 77);
  EXPECT_EQ(seen.offset, 4096U);
}

TEST_F(DeviceMemoryOfProvider, IsRegisteredByItsAddressWhereThereIsNoDmabuf) {
  for (const bool exported : {true, false}) {
    Grants grants;
    grants.dmabuf = !exported;
    SLUICE_OPEN(endpoint, grants);
    DeviceRegion own = region();
    if (!exported) own.dmabuf = -1;
    EXPECT_EQ(*endpoint->add_device_region(own), 0);
    ASSERT_EQ(registrations().size(), 1U);
    const gpu_provider::Registration& seen = registrations()[0];
    EXPECT_FALSE(seen.by_dmabuf);
    EXPECT_TRUE(seen.of_cuda);
    EXPECT_EQ(seen.device, 3);
    EXPECT_EQ(seen.base, memory_[0].data());
    EXPECT_EQ(seen.bytes, memory_[0].size());
  }
}

TEST_F(DeviceMemoryOfProvider, ThatCannotBeRegisteredAddsNothing) {
  Grants grants;
  grants.dmabuf = grants.address = false;
  SLUICE_OPEN(endpoint, grants);
  EXPECT_TRUE(endpoint->traits().device_memory);
  const Status status = endpoint->add_device_region(region()).status();
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("memory of GPU 3"), std::string::npos) << status.message();
  EXPECT_EQ(*endpoint->add_region(memory_[0].data(), 4096), 0);
}

TEST_F(DeviceMemoryOfProvider, IsOnAllRailsOrOnNone) {
  Grants grants;
  grants.registrations = 1;
  SLUICE_OPEN(endpoint, grants, 0, 2);
  EXPECT_EQ(endpoint->add_device_region(region()).status().code(), StatusCode::unavailable);
  EXPECT_EQ(registrations().size(), 1U);
  EXPECT_EQ(*endpoint->add_region(memory_[0].data(), 4096), 0);
}

TEST_F(DeviceMemoryOfProvider, IsLeftAloneWhereTheProviderMayCallCuda) {
  Grants grants;
  grants.without_cuda = false;
  SLUICE_OPEN(endpoint, grants);
  expect_host_memory_only(*endpoint);
}

TEST_F(DeviceMemoryOfProvider, IsLeftAloneWhereTheProviderDoesNotReachIt) {
  Grants grants;
  grants.memory_of_gpus = false;
  SLUICE_OPEN(endpoint, grants);
  expect_host_memory_only(*endpoint);
}

TEST_F(DeviceMemoryOfProvider, TravelsAsTheHostsDoes) {
  for (const int rails : {1, 2}) {
    SLUICE_OPEN(source, Grants{}, 0, rails);
    SLUICE_OPEN(target, Grants{}, 1, rails);
    ASSERT_EQ(*source->add_device_region(region(0)), 0);
    ASSERT_EQ(*target->add_device_region(region(1)), 0);
    ASSERT_TRUE(source->connect(1, *target->introduction()).ok());
    ASSERT_TRUE(target->connect(0, *source->introduction()).ok());
    for (std::size_t i = 0; i < memory_[0].size(); ++i) {
      memory_[0][i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rails));
    }
    std::array<Event, 16> events;
    std::uint32_t put = 0;
    int arrived = 0;
    const auto deadline = base::Deadline::after(std::chrono::seconds(30));
    while (arrived < 4 && !deadline.expired()) {
      const Chunk chunk{1, 0, 16384 * put, 0, 16384 * put, 16384, put, put};
      if (put < 4 && source->put(chunk) == Posted::yes) ++put;
      (void)source->poll(events);
      const std::size_t count = target->poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        if (events[i].kind == Event::Kind::arrived) ++arrived;
      }
    }
    ASSERT_EQ(arrived, 4);
    EXPECT_EQ(memory_[0], memory_[1]);
  }
}

}  // namespace
}  // namespace sluice::transport
