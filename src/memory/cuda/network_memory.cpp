// SPDX-License-Identifier: MIT
#include "memory/cuda/network_memory.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <string>
#include <utility>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/cuda/service_stream.hpp"
#include "memory/cuda/vmm_memory.hpp"

namespace sluice::memory {
namespace {

Result<int> ask(int device, CUdevice_attribute attribute) {
  const Driver& driver = *Driver::get().value();
  CUdevice number{};
  int value = 0;
  CUresult result = driver.device_get(&number, device);
  if (result == CUDA_SUCCESS) result = driver.device_get_attribute(&value, attribute, number);
  if (result == CUDA_SUCCESS) return value;
  return cuda_status(result, "cannot ask what " + gpu_text(device) + " can do");
}

// Whether kernels of the GPU see what an adapter has written as soon as the host knows of it; else flush() is needed.
Result<bool> is_ordered(int device) {
  const Result<int> order = ask(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  if (!order.ok()) return order.status();
  if (*order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) return true;
  const Result<int> flush = ask(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  if (!flush.ok()) return flush.status();
  if ((*flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0) return false;
  return Status(StatusCode::unavailable,
                gpu_text(device) +
                    " neither keeps the order of what a network's adapter writes, nor "
                    "lets the host wait for it");
}

base::Descriptor export_dmabuf(int device, std::byte* base, std::size_t bytes) {
  const Result<int> supported = ask(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  int file = -1;
  if (!supported.ok() || *supported == 0 ||
      Driver::get().value()->handle_for_range(&file, reinterpret_cast<CUdeviceptr>(base), bytes,
                                              CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                              0) != CUDA_SUCCESS) {
    return {};
  }
  (void)::fcntl(file, F_SETFD, FD_CLOEXEC);
  return base::Descriptor(file);
}

}  // namespace

Result<NetworkMemory> NetworkMemory::create(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  if (Status status = check_vmm(device, VmmHandle::network); !status.ok()) return status;
  const Result<bool> ordered = is_ordered(device);
  if (!ordered.ok()) return ordered.status();
  const Result<std::size_t> unit = vmm_granularity(device, VmmHandle::network);
  if (!unit.ok()) return unit.status();
  const std::size_t wanted = (bytes + *unit - 1) / *unit * *unit;
  OwnedAllocation held = create_vmm(device, wanted, VmmHandle::network);
  if (!held.ok()) return held.status();

  NetworkMemory memory;
  memory.device_ = device;
  memory.ordered_ = *ordered;
  memory.held_ = std::move(held).value();
  memory.dmabuf_ = export_dmabuf(device, memory.base(), wanted);
  auto stream = ServiceStream::of(device);
  if (!stream.ok()) return stream.status();
  memory.stream_ = std::move(stream).value();
  const ServiceStream::Use use(*memory.stream_);
  cudaError_t error = cudaMemsetAsync(memory.base(), 0, wanted, use.get());
  if (error == cudaSuccess) error = cudaStreamSynchronize(use.get());
  if (error != cudaSuccess) {
    return cuda_status(error, "cannot fill " + std::to_string(bytes) + " bytes of GPU memory");
  }
  return memory;
}

Status NetworkMemory::flush() const {
  if (ordered_) return {};
  const DeviceGuard guard(device_);
  if (!guard.status().ok()) return guard.status();
  return cuda_status(Driver::get().value()->flush_network_writes(
                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
                     "waiting for what the network wrote into " + gpu_text(device_));
}

bool NetworkMemory::copy(int device, std::byte* to, const std::byte* from, std::size_t bytes) {
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return false;
  const auto stream = ServiceStream::of(device);
  if (!stream.ok()) return false;
  const ServiceStream::Use use(*stream.value());
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, use.get());
  if (error == cudaSuccess) error = cudaStreamSynchronize(use.get());
  return error == cudaSuccess;
}

}  // namespace sluice::memory
