// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>

#include "cuda_objects.hpp"
#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/pinned_memory.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

class GpuStaging final : public Staging {
 public:
  GpuStaging(std::shared_ptr<void> host, std::byte* device, std::size_t bytes, void* stream)
      : host_(std::move(host)),
        device_(device),
        bytes_(bytes),
        stream_(static_cast<cudaStream_t>(stream)) {}

  Status prepare() {
    for (Event* event : {&begin_, &end_}) {
      if (Status status = cuda_status(cudaEventCreate(event->put()), "an event"); !status) {
        return status;
      }
    }
    return {};
  }

  Result<double> time(bool out) override {
    void* const to = out ? host_.get() : device_;
    const void* const from = out ? static_cast<void*>(device_) : host_.get();
    Status status = cuda_status(cudaEventRecord(begin_.get(), stream_), "an event");
    if (status) {
      status = cuda_status(cudaMemcpyAsync(to, from, bytes_, cudaMemcpyDefault, stream_),
                           "a copy between host and GPU");
    }
    if (status) status = cuda_status(cudaEventRecord(end_.get(), stream_), "an event");
    if (status) status = cuda_status(cudaStreamSynchronize(stream_), "a copy");
    if (!status) return status;
    return microseconds_between(begin_, end_);
  }

 private:
  std::shared_ptr<void> host_;
  std::byte* device_;
  std::size_t bytes_;
  cudaStream_t stream_;
  Event begin_, end_;
};

}  // namespace

Result<std::unique_ptr<Staging>> gpu_staging(Place& place, std::size_t bytes) {
  Result<std::shared_ptr<void>> host = memory::take_pinned(bytes);
  if (!host) return host.status();
  const Result<std::byte*> device = place.take(bytes);
  if (!device) return device.status();
  auto staging =
      std::make_unique<GpuStaging>(std::move(host).value(), *device, bytes, place.stream());
  if (Status status = staging->prepare(); !status) return status;
  return std::unique_ptr<Staging>(std::move(staging));
}

}  // namespace sluice::bench
