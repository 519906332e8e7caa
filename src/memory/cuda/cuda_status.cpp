// SPDX-License-Identifier: MIT
#include "memory/cuda/cuda_status.hpp"

#include <array>
#include <string>

#include "memory/cuda/driver.hpp"

namespace sluice::memory {
namespace {

Status status_of(StatusCode code, std::string_view what, const char* description,
                 const char* name) {
  return Status(code, std::string(what) + ": " + description + " (" + name + ")");
}

StatusCode code_of(cudaError_t error) noexcept {
  switch (error) {
    case cudaErrorMemoryAllocation: return StatusCode::out_of_memory;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorNoKernelImageForDevice: return StatusCode::unavailable;
    default: return StatusCode::io_error;
  }
}

}  // namespace

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  int driver_version = 0;
  if (error == cudaErrorInsufficientDriver &&
      cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version == 0) {
    // The runtime's own words speak of an old driver where there is none.
    return status_of(StatusCode::unavailable, what, "no NVIDIA driver in this machine",
                     cudaGetErrorName(error));
  }
  return status_of(code_of(error), what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Status cuda_status(CUresult error, std::string_view what) {
  if (error == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* description = nullptr;
  if (const auto driver = Driver::get(); driver.ok()) {
    (void)driver.value()->error_name(error, &name);
    (void)driver.value()->error_string(error, &description);
  }
  // The runtime took over the driver's numbers.
  return status_of(code_of(static_cast<cudaError_t>(error)), what,
                   description != nullptr ? description : "unknown error",
                   name != nullptr ? name : std::to_string(error).c_str());
}

std::string gpu_text(int device) {
  return "GPU " + std::to_string(device);
}

std::string pci_address(int device) {
  std::array<char, 32> address{};
  const cudaError_t error =
      cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device);
  return cuda_status(error, "an address of PCI").ok() ? address.data() : "";
}

Result<std::string> device_uuid(int device) {
  const Result<const Driver*> driver = Driver::get();
  if (!driver.ok()) return driver.status();
  CUdevice handle = 0;
  CUuuid uuid{};
  CUresult error = (*driver)->device_get(&handle, device);
  if (error == CUDA_SUCCESS) error = (*driver)->device_get_uuid(&uuid, handle);
  if (Status status = cuda_status(error, "a device's UUID"); !status.ok()) return status;
  return std::string(uuid.bytes, sizeof(uuid.bytes));
}

}  // namespace sluice::memory
