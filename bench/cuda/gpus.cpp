// SPDX-License-Identifier: MIT
#include "gpus.hpp"

#include <cuda_runtime_api.h>

#include <fstream>
#include <optional>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_memory.hpp"
#include "nvml_library.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

/// "580.159.04", as its kernel module says.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "unknown";
}

Gpu describe(int device, int count, const std::optional<NvmlLibrary>& nvml) {
  Gpu gpu;
  cudaDeviceProp properties = {};
  if (!cuda_status(cudaGetDeviceProperties(&properties, device), "properties").ok()) return gpu;
  gpu.name = properties.name;
  gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.compute_major = properties.major;
  gpu.compute_minor = properties.minor;
  gpu.bus = memory::pci_address(device);
  const Result<std::size_t> granularity = memory::DeviceMemory::granularity(device);
  gpu.sharing = granularity ? "file descriptors" : granularity.status().message();
  for (int other = 0; other < count; ++other) {
    int reachable = 0;
    if (other != device &&
        cuda_status(cudaDeviceCanAccessPeer(&reachable, device, other), "peer").ok() &&
        reachable != 0) {
      gpu.reachable.push_back({other, nvml ? nvml->way(gpu.bus, memory::pci_address(other)) : ""});
    }
  }
  return gpu;
}

}  // namespace

Gpus Gpus::here() {
  Gpus gpus;
  gpus.built = true;
  int count = 0;
  if (const Status status = cuda_status(cudaGetDeviceCount(&count), "looking for GPUs");
      !status.ok()) {
    gpus.problem = status.message();
    return gpus;
  }
  if (count == 0) gpus.problem = "none is visible";
  gpus.driver = driver_version();
  const std::optional<NvmlLibrary> nvml = NvmlLibrary::load();
  for (int device = 0; device < count; ++device) {
    gpus.list.push_back(describe(device, count, nvml));
  }
  return gpus;
}

}  // namespace sluice::bench
