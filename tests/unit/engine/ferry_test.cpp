// SPDX-License-Identifier: MIT
// The ferry by itself: no network, one rank, items that the test adds.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "engine/cuda/ferry_launcher.hpp"
#include "memory/cuda/pinned_memory.hpp"

namespace sluice::engine::cuda {
namespace {

constexpr int kSource = 1;
constexpr std::uint16_t kOwn = 1;  // Rank 0, as a set.

class FerryAlone : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
    window::PacketShape shape;
    shape.ranks = 2;
    shape.top_k = 2;
    shape.banks = 3;
    shape.tokens = 64;
    shape.local_experts = 4;
    shape.dispatch_row_bytes = shape.combine_row_bytes = 2048;
    shape.cell_tokens = 64;
    port_.layout = window::PacketLayout(shape);
    window_bytes_ = port_.layout.lane(2);
    port_.rings = window_bytes_;  // Before them, what is carried.
    auto pool = memory::DevicePool::create(0);
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    port_.pool = *pool;
    auto host = memory::take_pinned(port_.rings + kFerryHostBytes);
    ASSERT_TRUE(host.ok()) << host.status().to_string();
    port_.memory = *host;
    port_.host = static_cast<std::byte*>(port_.memory.get());
    void* seen = nullptr;
    ASSERT_EQ(cudaHostGetDevicePointer(&seen, port_.host, 0), cudaSuccess);
    port_.args.host = static_cast<std::byte*>(seen);
    std::memset(port_.host, 0, port_.rings + kFerryHostBytes);
    window_ = port_.pool->take(window_bytes_);
    port_.state = port_.pool->take(sizeof(FerryState));
    ASSERT_TRUE(window_ != nullptr && port_.state != nullptr);
    ASSERT_TRUE(port_.pool->write(window_.get(), nullptr, window_bytes_).ok());
    ASSERT_TRUE(port_.pool->write(port_.state.get(), nullptr, sizeof(FerryState)).ok());
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    port_.stream = stream;
    ASSERT_EQ(load_ferry_kernel(), 0);
    port_.args.windows[0] = static_cast<std::byte*>(window_.get());
    port_.args.layout = port_.layout;
    port_.args.state = static_cast<FerryState*>(port_.state.get());
    port_.args.items = reinterpret_cast<const FerryItem*>(port_.args.host + port_.rings);
    port_.args.counts = port_.args.host + port_.rings + kFerryItemsBytes;
  }

  void carry_all(Ferry& ferry) {
    const auto deadline = base::Deadline::after(std::chrono::seconds(60));
    do {
      (void)ferry.step();
      std::this_thread::yield();
    } while (!ferry.idle() && !deadline.expired());
    ASSERT_TRUE(ferry.idle()) << ferry.carried() << " of " << ferry.added();
  }
  /// Of the source's lane.
  std::vector<std::byte> lane(std::size_t offset, std::size_t bytes) {
    std::vector<std::byte> read(bytes);
    EXPECT_TRUE(
        port_.pool
            ->write(read.data(), port_.args.windows[0] + port_.layout.lane(kSource) + offset, bytes)
            .ok());
    return read;
  }

  FerryPort port_;
  std::shared_ptr<void> window_;
  std::size_t window_bytes_ = 0;
};

TEST_F(FerryAlone, BringsWhatItIsGiven) {
  Ferry ferry(port_);
  for (std::size_t i = 0; i < port_.rings; ++i) port_.host[i] = static_cast<std::byte>(i * 7 + 1);
  const std::size_t first = port_.layout.dispatch_row(0, 0);
  // Whole items and parts of them, more than the blocks carry at once, in one step and in several launches.
  std::size_t packets = 1;
  for (const std::size_t piece : {1U, 255U, 256U, 257U, 1000U, 2U, 3000U}) {
    ferry.carry(first + packets * 16, first + packets * 16, piece * 16, kOwn, kSource);
    packets += piece;
    if (piece == 256) carry_all(ferry);
    if (piece == 1000) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_LE(first + packets * 16, window_bytes_ / 2);
  carry_all(ferry);
  const std::vector<std::byte> got = lane(first, packets * 16 + 16);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool carried = i >= 16 && i < packets * 16;
    ASSERT_EQ(got[i], carried ? port_.host[first + i] : std::byte{0}) << i;
  }
}

// Warps carry what comes together in any order.
TEST_F(FerryAlone, TellsNoOlderWordOverANewerOne) {
  Ferry ferry(port_);
  const std::size_t at = port_.layout.told(protocol::Kind::combine);
  const std::uint64_t high = std::uint64_t{3} << 32;  // Both halves are told.
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const std::uint64_t newest = high + 8 * round;
    for (std::uint64_t older = 0; older < 8; ++older) ferry.tell(at, newest - older, kSource);
    carry_all(ferry);
    std::uint64_t word = 0;
    std::memcpy(&word, lane(at, sizeof(word)).data(), sizeof(word));
    ASSERT_EQ(word, newest) << round;
  }
}

}  // namespace
}  // namespace sluice::engine::cuda
