// SPDX-License-Identifier: MIT
//
// Ranks as threads of one process, over the GPUs of this machine in turn. Without a GPU it says so
// and exits with kSkipped, which ctest takes for a skipped test.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "conformance/scenario.hpp"
#include "support/place.hpp"

namespace sluice::conformance {
namespace {

constexpr int kSkipped = 77;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

/// Pinned memory that host and GPUs can read, taken once: allocating it later could wait for kernels
/// that wait for other ranks.
class Arena {
 public:
  static Arena& instance() {
    static Arena arena;
    return arena;
  }

  std::shared_ptr<void> take(std::size_t bytes) {
    const std::size_t size = (bytes + kUnit) / kUnit * kUnit;
    const std::lock_guard<std::mutex> lock(mutex_);
    // First fit.
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->second < size) continue;
      const std::size_t at = block->first;
      const std::size_t left = block->second - size;
      free_.erase(block);
      if (left > 0) free_[at + size] = left;
      return {base_ + at, [this, at, size](void*) { give(at, size); }};
    }
    std::fprintf(stderr, "the tests' pinned memory is too small for %zu bytes more\n", size);
    std::abort();
  }

 private:
  static constexpr std::size_t kUnit = 256;
  static constexpr std::size_t kBytes = std::size_t{1} << 30;

  Arena() {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, kBytes, cudaHostAllocPortable | cudaHostAllocMapped), "pinned");
    base_ = static_cast<std::byte*>(memory);
    free_[0] = kBytes;
  }
  void give(std::size_t at, std::size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == at + size) {
      size += next->second;
      free_.erase(next);
    }
    if (!free_.empty()) {
      auto before = free_.lower_bound(at);
      if (before != free_.begin() && (--before)->first + before->second == at) {
        before->second += size;
        return;
      }
    }
    free_[at] = size;
  }

  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;
  std::byte* base_ = nullptr;
};

int gpu_count() {
  static const int count = [] {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
  }();
  return count;
}

class GpuPlace final : public support::Place {
 public:
  explicit GpuPlace(int rank) : device_(rank % gpu_count()) {
    must(cudaSetDevice(device_), "device");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  ~GpuPlace() override { (void)cudaStreamDestroy(stream_); }

  Device device() const override { return Device::cuda; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return Arena::instance().take(bytes);
  }
  void* stream() const override { return stream_; }
  void finish() override { must(cudaStreamSynchronize(stream_), "a call"); }
  std::vector<std::byte> read(const void* from, std::size_t bytes) override {
    std::vector<std::byte> copy(bytes);
    cudaPointerAttributes attributes = {};
    must(cudaPointerGetAttributes(&attributes, from), "memory");
    if (attributes.type == cudaMemoryTypeHost) {
      std::memcpy(copy.data(), from, bytes);
      return copy;
    }
    must(cudaMemcpyAsync(copy.data(), from, bytes, cudaMemcpyDefault, stream_), "copy");
    finish();
    return copy;
  }
  void adapt(CommunicatorOptions& options) const override {
    options.device = Device::cuda;
    options.device_index = device_;
    // Who waits for a peer that never comes holds the machine: not for long.
    constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(5);
    options.deadline = std::min<std::chrono::nanoseconds>(options.deadline, kLongest);
    options.first_deadline = std::min<std::chrono::nanoseconds>(options.first_deadline, kLongest);
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

support::RunResult run_on_gpus(int ranks, const support::RankBody& body,
                               const support::RunOptions& options) {
  Arena::instance();
  return support::run_as_threads(
      ranks,
      [&](World& world, support::Findings& findings) {
        GpuPlace place(world.rank());
        support::set_place(&place);
        body(world, findings);
        support::set_place(nullptr);
      },
      options);
}

}  // namespace

support::RunRanks launcher() {
  return run_on_gpus;
}

}  // namespace sluice::conformance

int main(int argc, char** argv) {
  // Ranks that share a GPU wait for each other: their streams must not share a hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::testing::InitGoogleTest(&argc, argv);
  if (!::testing::GTEST_FLAG(list_tests) && sluice::conformance::gpu_count() == 0) {
    std::puts("skipped: no GPU in this machine");
    return sluice::conformance::kSkipped;
  }
  return RUN_ALL_TESTS();
}
