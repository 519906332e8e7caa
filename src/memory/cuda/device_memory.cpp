// SPDX-License-Identifier: MIT
#include "memory/cuda/device_memory.hpp"

#include <cuda_runtime_api.h>

#include <limits>
#include <string>

#include "base/environment.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/ipc_memory.hpp"
#include "memory/cuda/service_stream.hpp"
#include "memory/cuda/vmm_memory.hpp"

namespace sluice::memory {
namespace {

// Ok if `device` is there.
Status check_device(int device) {
  int count = 0;
  if (Status status = cuda_status(cudaGetDeviceCount(&count), "no GPU can be used"); !status.ok()) {
    return Status(StatusCode::unavailable, status.message());
  }
  if (count == 0) return Status(StatusCode::unavailable, "no GPU can be used: none is visible");
  if (device < 0 || device >= count) {
    return Status(StatusCode::invalid_argument, "there is no GPU " + std::to_string(device) +
                                                    ", expected a number from 0 to " +
                                                    std::to_string(count - 1));
  }
  return {};
}

// What the environment asks for; else the better way that there is.
Result<Sharing> chosen(int device) {
  const auto& asked = base::Environment::at_start().get(base::Variable::cuda_memory);
  if (asked == "ipc") return Sharing::ipc;
  if (asked == "vmm") return Sharing::vmm;
  if (asked == "fabric") return Sharing::fabric;
  if (asked.has_value()) {
    return Status(StatusCode::invalid_argument,
                  std::string(base::name_of(base::Variable::cuda_memory)) + " = " + *asked +
                      ", expected vmm, ipc or fabric");
  }
  return check_vmm(device, VmmHandle::file).ok() ? Sharing::vmm : Sharing::ipc;
}

VmmHandle handle_of(Sharing sharing) noexcept {
  return sharing == Sharing::fabric ? VmmHandle::fabric : VmmHandle::file;
}

Sharing sharing_of(const base::Descriptor& file) noexcept {
  if (is_ipc(file)) return Sharing::ipc;
  return vmm_handle_of(file) == VmmHandle::fabric ? Sharing::fabric : Sharing::vmm;
}

Result<std::size_t> unit_of(Sharing sharing, int device) {
  if (sharing == Sharing::ipc) return kIpcGranularity;
  const VmmHandle kind = handle_of(sharing);
  if (Status status = check_vmm(device, kind); !status.ok()) return status;
  return vmm_granularity(device, kind);
}

// What would overflow becomes the largest multiple, which no GPU has.
std::size_t rounded(std::size_t bytes, std::size_t granularity) noexcept {
  const std::size_t units = bytes / granularity + (bytes % granularity != 0 ? 1 : 0);
  return units > std::numeric_limits<std::size_t>::max() / granularity ? (units - 1) * granularity
                                                                       : units * granularity;
}

// Not on the default stream, which would wait for what the caller has under way.
Status fill_with(int device, std::byte* base, std::size_t bytes, unsigned char fill) {
  const auto stream = ServiceStream::of(device);
  if (!stream.ok()) return stream.status();
  const ServiceStream::Use use(*stream.value());
  cudaError_t error = cudaMemsetAsync(base, fill, bytes, use.get());
  if (error == cudaSuccess) error = cudaStreamSynchronize(use.get());
  return cuda_status(error, "cannot fill " + std::to_string(bytes) + " bytes of GPU memory");
}

}  // namespace

Result<DeviceMemory> DeviceMemory::create(int device, std::size_t bytes, unsigned char fill,
                                          Sharing sharing) {
  if (Status status = check_device(device); !status.ok()) return status;
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  if (sharing == Sharing::best) {
    const auto better = chosen(device);
    if (!better.ok()) return better.status();
    sharing = better.value();
  }
  const auto unit = unit_of(sharing, device);
  if (!unit.ok()) return unit.status();

  DeviceMemory memory(device);
  if (bytes == 0) return memory;
  const std::size_t wanted = rounded(bytes, unit.value());
  OwnedAllocation held = sharing == Sharing::ipc ? create_ipc(device, wanted)
                                                 : create_vmm(device, wanted, handle_of(sharing));
  if (!held.ok()) return held.status();
  memory.held_ = std::move(held).value();
  if (Status status = fill_with(device, memory.base(), wanted, fill); !status.ok()) return status;
  return memory;
}

Result<DeviceMemory> DeviceMemory::import(int device, const base::Descriptor& file,
                                          std::size_t bytes) {
  if (Status status = check_device(device); !status.ok()) return status;
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  DeviceMemory memory(device);
  if (bytes == 0) return memory;
  if (!file.open()) {
    return Status(StatusCode::invalid_argument,
                  "cannot import " + std::to_string(bytes) +
                      " bytes of GPU memory: expected an open descriptor, seen a closed one");
  }
  const Sharing sharing = sharing_of(file);
  const auto unit = unit_of(sharing, device);
  if (!unit.ok()) return unit.status();
  const std::size_t wanted = rounded(bytes, unit.value());
  OwnedAllocation held =
      sharing == Sharing::ipc ? import_ipc(device, file, wanted) : import_vmm(device, file, wanted);
  if (!held.ok()) return held.status();
  memory.held_ = std::move(held).value();
  return memory;
}

Result<base::Descriptor> DeviceMemory::share() const {
  return held_ != nullptr ? held_->share() : base::Descriptor();
}

Result<std::size_t> DeviceMemory::granularity(int device) {
  if (Status status = check_device(device); !status.ok()) return status;
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  const auto sharing = chosen(device);
  return sharing.ok() ? unit_of(sharing.value(), device) : sharing.status();
}

}  // namespace sluice::memory
