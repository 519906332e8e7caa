// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "gpu.hpp"
#include "gpus.hpp"
#include "memory/cuda/cuda_status.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

class GpuPlace final : public Place {
 public:
  explicit GpuPlace(int device) : device_(device) {}
  ~GpuPlace() override {
    for (std::byte* memory : memory_) (void)cudaFree(memory);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Status prepare() {
    if (Status status = cuda_status(cudaSetDevice(device_), "choosing a GPU"); !status) {
      return status;
    }
    // As a caller who runs something else beside it should: see GemmPart::beside.
    int least = 0;
    int greatest = 0;
    Status status = cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    if (!status) return status;
    return cuda_status(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                       "a stream");
  }

  Device device() const noexcept override { return Device::cuda; }
  std::string pci_address() const override { return memory::pci_address(device_); }
  void adapt(CommunicatorOptions& options) const override {
    options.device = Device::cuda;
    options.device_index = device_;
  }
  void* stream() const noexcept override { return stream_; }
  Result<std::byte*> take(std::size_t bytes) override {
    void* memory = nullptr;
    Status status = cuda_status(cudaMalloc(&memory, bytes > 0 ? bytes : 1),
                                fmt::format("{} bytes of GPU memory", bytes));
    if (!status) return status;
    memory_.push_back(static_cast<std::byte*>(memory));
    return memory_.back();
  }
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return copy(to, from, bytes);
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return copy(to, from, bytes);
  }
  Result<std::unique_ptr<Staging>> staging(std::size_t bytes) override {
    return gpu_staging(*this, bytes);
  }
  Result<std::unique_ptr<Shuttle>> shuttle(std::uint64_t out, std::uint64_t in,
                                           double deadline_s) override {
    return gpu_shuttle(*this, out, in, deadline_s);
  }
  Status finish() override {
    return cuda_status(cudaStreamSynchronize(stream_), "what was queued on the GPU");
  }

 private:
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0) return {};
    Status status =
        cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "a copy");
    return status ? finish() : status;
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::byte*> memory_;
};

}  // namespace

Result<std::unique_ptr<Place>> gpu_place(int rank) {
  int count = 0;
  if (Status status = cuda_status(cudaGetDeviceCount(&count), "--engine cuda: looking for GPUs");
      !status) {
    return status;
  }
  if (count == 0) return Status(StatusCode::unavailable, "--engine cuda: no GPU is visible");
  auto place = std::make_unique<GpuPlace>(rank % count);
  if (Status status = place->prepare(); !status) return status;
  return std::unique_ptr<Place>(std::move(place));
}

std::string gpu_text() {
  const Gpus gpus = Gpus::here();
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      static_cast<std::size_t>(device) >= gpus.list.size()) {
    return "unknown GPU";
  }
  const Gpu& gpu = gpus.list[static_cast<std::size_t>(device)];
  return fmt::format("{}, {:.0f} GiB, {} visible, driver {}", gpu.name,
                     static_cast<double>(gpu.memory_bytes) / (1024.0 * 1024.0 * 1024.0),
                     gpus.list.size(), gpus.driver);
}

}  // namespace sluice::bench
