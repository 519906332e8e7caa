// SPDX-License-Identifier: MIT
#include "memory/cuda/device_memory.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/mapping.hpp"
#include "sluice/world.hpp"
#include "unit/bootstrap/ranks.hpp"

namespace sluice::memory {
namespace {

using std::chrono::seconds;

#define SLUICE_SKIP_WITHOUT_GPU()                                               \
  if (const auto unit_of_gpu = DeviceMemory::granularity(0); !unit_of_gpu.ok()) \
  GTEST_SKIP() << "no GPU in this machine: " << unit_of_gpu.status().to_string()

/// Where memory cannot be shared so, which of fabric handles only its creation says.
#define SLUICE_SKIP_WITHOUT(sharing)                                                   \
  SLUICE_SKIP_WITHOUT_GPU();                                                           \
  if (const auto some = DeviceMemory::create(0, 1, 0, sharing);                        \
      (sharing) == Sharing::fabric && some.status().code() == StatusCode::unavailable) \
  GTEST_SKIP() << some.status().to_string()

const char* name_of(Sharing sharing) {
  return sharing == Sharing::vmm ? "vmm" : (sharing == Sharing::ipc ? "ipc" : "fabric");
}

unsigned char byte_at(const DeviceMemory& memory, std::size_t at) {
  unsigned char byte = 0;
  if (cudaMemcpy(&byte, memory.base() + at, 1, cudaMemcpyDeviceToHost) != cudaSuccess) return 0xEE;
  return byte;
}

// Exit codes: 0 is good, 77 no GPU, 78 no such handles, others name the step.
int write_to_all_peers(int rank, int size, const std::string& rendezvous, Sharing sharing) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 77;
  const int device = rank % count;
  if (cudaSetDevice(device) != cudaSuccess) return 2;
  auto world = World::join(rank, size, rendezvous, WorldOptions{seconds(60)});
  if (!world.ok()) return 3;
  const std::size_t part = std::size_t{1} << 20;
  const std::size_t bytes = part * static_cast<std::size_t>(size);
  auto own = DeviceMemory::create(device, bytes, 0xFF, sharing);
  if (sharing == Sharing::fabric && own.status().code() == StatusCode::unavailable) return 78;
  auto file = own.ok() ? own->share() : Result<base::Descriptor>(own.status());
  auto files = world->group()->exchange_files(file, base::Deadline::after(seconds(60)));
  if (!files.ok()) return 4;
  const std::size_t mine = static_cast<std::size_t>(rank) * part;
  std::vector<DeviceMemory> peers;
  for (const base::Descriptor& peer : *files) {
    auto memory = DeviceMemory::import(device, peer, bytes);
    if (!memory.ok()) return 5;
    peers.push_back(std::move(*memory));
    if (cudaMemset(peers.back().base() + mine, 'a' + rank, part) != cudaSuccess) return 6;
  }
  if (cudaDeviceSynchronize() != cudaSuccess || !world->barrier().ok()) return 7;
  for (std::size_t writer = 0; writer < files->size(); ++writer) {
    for (const std::size_t at : {writer * part, (writer + 1) * part - 1}) {
      if (byte_at(*own, at) != static_cast<unsigned char>('a' + writer)) return 8;
    }
  }
  return world->leave(seconds(60)).ok() ? 0 : 9;
}

// The first test here: a forked child can use no GPU once its parent has used one.
TEST(DeviceMemory, ProcessesWriteIntoEachOthersMemory) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  constexpr int kSize = 4;
  for (const Sharing sharing : {Sharing::vmm, Sharing::ipc, Sharing::fabric}) {
    const std::string rendezvous = testing::new_rendezvous();
    testing::ForkedRanks ranks(
        kSize, [&](int rank) { return write_to_all_peers(rank, kSize, rendezvous, sharing); });
    std::array<int, kSize> codes{};
    for (int rank = 0; rank < kSize; ++rank) {
      codes[static_cast<std::size_t>(rank)] = ranks.exit_code(rank);
    }
    if (codes[0] == 77) GTEST_SKIP() << "no GPU in this machine";
    if (sharing == Sharing::fabric && codes[0] == 78) continue;  // Skipped below, with words.
    for (const int code : codes) EXPECT_EQ(code, 0) << name_of(sharing);
  }
}

class DeviceMemoryShared : public ::testing::TestWithParam<Sharing> {};
std::string sharing_name(const ::testing::TestParamInfo<Sharing>& parameter) {
  return name_of(parameter.param);
}
INSTANTIATE_TEST_SUITE_P(By, DeviceMemoryShared,
                         ::testing::Values(Sharing::vmm, Sharing::ipc, Sharing::fabric),
                         sharing_name);

TEST(DeviceMemory, WithoutAGpuItSaysSo) {
  auto memory = DeviceMemory::create(0, 4096, 0);
  if (memory.ok()) GTEST_SKIP() << "there is a GPU in this machine";
  EXPECT_EQ(memory.status().code(), StatusCode::unavailable);
  EXPECT_NE(memory.status().message().find("GPU"), std::string::npos);
  EXPECT_NE(memory.status().message().find("cudaError"), std::string::npos);
  auto file = create_memory_file(4096, false);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(DeviceMemory::import(0, *file, 4096).status().code(), StatusCode::unavailable);
  EXPECT_EQ(DeviceMemory::granularity(0).status().code(), StatusCode::unavailable);
  EXPECT_FALSE(DeviceGuard(0).status().ok());
}

// Ranks that share a GPU find out by this.
TEST(DeviceUuid, TellsDevicesApart) {
  SLUICE_SKIP_WITHOUT_GPU();
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  std::set<std::string> seen;
  for (int device = 0; device < count; ++device) {
    const Result<std::string> uuid = device_uuid(device);
    ASSERT_TRUE(uuid.ok()) << uuid.status().to_string();
    EXPECT_EQ(uuid->size(), 16U);
    EXPECT_NE(*uuid, std::string(16, '\0'));
    EXPECT_TRUE(seen.insert(*uuid).second) << "of device " << device;
    EXPECT_EQ(device_uuid(device).value(), *uuid);
  }
  EXPECT_FALSE(device_uuid(count).ok());
}

TEST(DeviceMemory, AnEmptyOneIsHarmless) {
  DeviceMemory memory;
  EXPECT_EQ(memory.base(), nullptr);
  EXPECT_EQ(memory.bytes(), 0U);
  auto file = memory.share();
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->open());
}

TEST_P(DeviceMemoryShared, TwoMappingsSeeOneMemory) {
  SLUICE_SKIP_WITHOUT(GetParam());
  constexpr std::size_t kBytes = (std::size_t{2} << 20) + 1;
  auto own = DeviceMemory::create(0, kBytes, 0x5A, GetParam());
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_GT(own->bytes(), kBytes);
  EXPECT_EQ(byte_at(*own, 0), 0x5A);
  EXPECT_EQ(byte_at(*own, own->bytes() - 1), 0x5A);

  auto file = own->share();
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_NE(::fcntl(file->number(), F_GETFD) & FD_CLOEXEC, 0);
  auto other = DeviceMemory::import(0, *file, kBytes);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  file->reset();
  EXPECT_EQ(other->bytes(), own->bytes());
  ASSERT_EQ(cudaMemset(other->base() + kBytes, 0x11, 100), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(byte_at(*own, kBytes - 1), 0x5A);
  EXPECT_EQ(byte_at(*own, kBytes + 99), 0x11);
  EXPECT_EQ(byte_at(*own, kBytes + 100), 0x5A);

  *own = {};  // The other mapping keeps the memory.
  DeviceMemory moved = std::move(*other);
  EXPECT_EQ(other->base(), nullptr);
  EXPECT_EQ(byte_at(moved, kBytes), 0x11);
  // A thread that has used no GPU may let it go.
  std::thread([last = std::move(moved)]() mutable { last = {}; }).join();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_P(DeviceMemoryShared, ADescriptorThatIsOpenKeepsTheMemory) {
  SLUICE_SKIP_WITHOUT(GetParam());
  if (GetParam() == Sharing::fabric) GTEST_SKIP() << "a fabric handle does not keep its memory";
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  auto own = DeviceMemory::create(0, kBytes, 0x77, GetParam());
  ASSERT_TRUE(own.ok());
  auto file = own->share();
  ASSERT_TRUE(file.ok());
  *own = {};
  ASSERT_TRUE(DeviceMemory::create(0, kBytes, 0, GetParam()).ok());  // It would be taken from here.
  auto other = DeviceMemory::import(0, *file, kBytes);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(byte_at(*other, 0), 0x77);
  EXPECT_EQ(byte_at(*other, kBytes - 1), 0x77);
}

TEST_P(DeviceMemoryShared, WhatCannotBeIsAStatusAndLeaksNothing) {
  SLUICE_SKIP_WITHOUT(GetParam());
  constexpr std::size_t kUnit = std::size_t{2} << 20;
  // What the first use takes, it takes now.
  ASSERT_TRUE(DeviceMemory::create(0, kUnit, 0, GetParam()).ok());
  std::size_t free_before = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  constexpr int kRounds = SLUICE_CUDA_SIMULATED ? 4 : 20;
  for (int round = 0; round < kRounds; ++round) {
    for (const std::size_t bytes : {2 * total, std::numeric_limits<std::size_t>::max()}) {
      auto refused = DeviceMemory::create(0, bytes, 0, GetParam());
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.status().code(), StatusCode::out_of_memory) << refused.status().to_string();
    }
    for (const int device : {-1, 1000}) {
      auto refused = DeviceMemory::create(device, kUnit, 0, GetParam());
      EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
    }
    auto own = DeviceMemory::create(0, 64 * kUnit, 0, GetParam());
    ASSERT_TRUE(own.ok());
    auto file = own->share();
    ASSERT_TRUE(file.ok());
    EXPECT_FALSE(DeviceMemory::import(0, *file, 65 * kUnit).ok());  // More than there is.
    EXPECT_EQ(DeviceMemory::import(0, base::Descriptor(), kUnit).status().code(),
              StatusCode::invalid_argument);
    auto no_memory = create_memory_file(4096, false);
    ASSERT_TRUE(no_memory.ok());
    EXPECT_FALSE(DeviceMemory::import(0, *no_memory, kUnit).ok());
    const base::Descriptor no_ticket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_FALSE(DeviceMemory::import(0, no_ticket, kUnit).ok());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error that sticks";
  }
  std::size_t free_after = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  // By IPC, that of one round is kept as spare memory.
  const std::size_t spare = GetParam() == Sharing::ipc ? 64 * kUnit : 0;
  EXPECT_GE(free_after + spare + 32 * kUnit, free_before);
  auto none = DeviceMemory::create(0, 0, 0, GetParam());
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->base(), nullptr);
}

#if SLUICE_CUDA_SIMULATED
TEST(DeviceMemory, FabricHandlesThatAreNotGrantedAreAStatus) {
  ASSERT_EQ(::setenv("SLUICE_SIMULATOR_NO_FABRIC", "1", 1), 0);
  const auto refused = DeviceMemory::create(0, 4096, 0, Sharing::fabric);
  ASSERT_EQ(::unsetenv("SLUICE_SIMULATOR_NO_FABRIC"), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::unavailable);
  EXPECT_NE(refused.status().message().find("IMEX"), std::string::npos);
  EXPECT_TRUE(DeviceMemory::create(0, 4096, 0, Sharing::vmm).ok());
}
#endif

TEST(DeviceGuard, RestoresTheDeviceBefore) {
  SLUICE_SKIP_WITHOUT_GPU();
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  // A thread that has chosen no GPU, then one that has.
  std::thread([count] {
    for (const bool chosen : {false, true}) {
      if (chosen) {
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
      }
      for (int device = 0; device < count; ++device) {
        int now = -1;
        {
          const DeviceGuard guard(device);
          ASSERT_TRUE(guard.status().ok()) << guard.status().to_string();
          ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
          EXPECT_EQ(now, device);
        }
        ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
        EXPECT_EQ(now, 0);
      }
    }
    EXPECT_FALSE(DeviceGuard(count).status().ok());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }).join();
}

// -1: not known.
int has_context(int device) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 7000,
                                       cudaEnableDefault, &answer) != cudaSuccess) {
    return -1;
  }
  unsigned flags = 0;
  int active = -1;
  const auto ask = reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(found);
  return ask(device, &flags, &active) == CUDA_SUCCESS ? active : -1;
}

/// Uses GPU 1 as a thread does that has chosen none.
void use_second_gpu() {
  for (int time = 0; time < 2; ++time) {
    const DeviceGuard guard(1);
    void* memory = nullptr;
    if (!guard.status().ok() || cudaMalloc(&memory, 4096) != cudaSuccess) std::exit(2);
    if (cudaFree(memory) != cudaSuccess) std::exit(3);
  }
  if (current_context() != nullptr) std::exit(4);
  if (has_context(1) != 1) std::exit(5);
  std::exit(has_context(0) == 0 ? 0 : 1);
}

// It would take a second, and memory there: a progress thread uses its rank's GPU alone.
TEST(DeviceGuard, MakesNoContextOnAGpuThatTheThreadDoesNotUse) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    GTEST_SKIP() << count << " GPUs, expected two";
  }
  // By a process that has used none.
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(use_second_gpu(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::memory
