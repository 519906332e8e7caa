// SPDX-License-Identifier: MIT
#include "support/gpu_place.hpp"

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace sluice::support {
namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

/// Pinned memory that host and GPUs can read, taken once: allocating it later could wait for kernels
/// that wait for other ranks.
class Arena {
 public:
  /// `bytes`: of the first call.
  static Arena& instance(std::size_t bytes = std::size_t{128} << 20) {
    static Arena arena(bytes);
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

  explicit Arena(std::size_t bytes) {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "pinned");
    base_ = static_cast<std::byte*>(memory);
    free_[0] = bytes;
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

class GpuPlace final : public Place {
 public:
  GpuPlace(int rank, std::chrono::nanoseconds longest)
      : device_(rank % gpu_count()), longest_(longest) {
    must(cudaSetDevice(device_), "device");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    // What a stream's first work sets up should not wait for kernels that wait for other ranks.
    const std::shared_ptr<void> first = Arena::instance().take(1);
    must(cudaMemsetAsync(first.get(), 0, 1, stream_), "a stream's first work");
    finish();
  }
  ~GpuPlace() override { (void)cudaStreamDestroy(stream_); }

  Device device() const override { return Device::cuda; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return Arena::instance().take(bytes);
  }
  void* stream() const override { return stream_; }
  void finish() override { must(cudaStreamSynchronize(stream_), "a call"); }
  void write(void* to, const void* from, std::size_t bytes) override {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
  }
  void fill(void* to, unsigned char byte, std::size_t bytes) override {
    must(cudaMemsetAsync(to, byte, bytes, stream_), "fill");
  }
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
  void follow(Place& other) override {
    cudaEvent_t event = nullptr;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    must(cudaEventRecord(event, static_cast<cudaStream_t>(other.stream())), "record of an event");
    must(cudaStreamWaitEvent(stream_, event, 0), "wait for an event");
    must(cudaEventDestroy(event), "end of an event");
  }
  void begin_capture(bool alone) override {
    must(cudaStreamBeginCapture(
             stream_, alone ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal),
         "begin of a capture");
  }
  std::function<void()> end_capture() override {
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream_, &graph), "end of a capture");
    cudaGraphExec_t executable = nullptr;
    must(cudaGraphInstantiate(&executable, graph, 0), "a graph");
    must(cudaGraphDestroy(graph), "a graph's end");
    must(cudaGraphUpload(executable, stream_), "upload of a graph");
    finish();
    const std::shared_ptr<CUgraphExec_st> owner(
        executable, [](CUgraphExec_st* one) { (void)cudaGraphExecDestroy(one); });
    return [this, owner] { must(cudaGraphLaunch(owner.get(), stream_), "launch of a graph"); };
  }
  void adapt(CommunicatorOptions& options) const override {
    options.device = Device::cuda;
    options.device_index = device_;
    options.deadline = std::min(options.deadline, longest_);
    options.first_deadline = std::min(options.first_deadline, longest_);
  }

 private:
  int device_;
  std::chrono::nanoseconds longest_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

int gpu_count() {
  static const int count = [] {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
  }();
  return count;
}

int gpu_count_before_forking() {
  constexpr int kMost = 100;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(std::min(gpu_count(), kMost));
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status);
}

void prepare_gpu_places() {
  Arena::instance(std::size_t{1} << 30);
}

std::chrono::nanoseconds longest_wait() {
  const bool patient = SLUICE_CUDA_SIMULATED && std::getenv("SLUICE_KERNEL_MUTANT") == nullptr;
  return std::chrono::seconds(patient ? 40 : 5);
}

std::unique_ptr<Place> gpu_place(int rank, std::chrono::nanoseconds longest) {
  return std::make_unique<GpuPlace>(rank, longest);
}

}  // namespace sluice::support
