// SPDX-License-Identifier: MIT
#include "memory/cuda/device_guard.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/driver.hpp"

namespace sluice::memory {

CUcontext current_context() noexcept {
  const auto driver = Driver::get();
  CUcontext context = nullptr;
  // An error says that this process has not used the driver yet: no context.
  if (!driver || driver.value()->context_get_current(&context) != CUDA_SUCCESS) return nullptr;
  return context;
}

DeviceGuard::DeviceGuard(int device, CUcontext own) : DeviceGuard() {
  if (own == nullptr || current_context() != own) enter(device);
}

DeviceGuard::DeviceGuard(int device) : DeviceGuard() {
  enter(device);
}

void DeviceGuard::enter(int device) {
  status_ = cuda_status(cudaGetDevice(&before_), "cannot ask for the current GPU");
  if (!status_.ok()) return;
  status_ = Driver::get().status();
  if (!status_.ok()) return;
  context_before_ = current_context();
  if (before_ == device && context_before_ != nullptr) return;
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess)
    status_ = cuda_status(error, "cannot use GPU " + std::to_string(device));
  changed_ = error == cudaSuccess && before_ != device;
}

DeviceGuard::~DeviceGuard() {
  if (!changed_) return;
  // By the context first: cudaSetDevice would make one, with its memory, on a GPU that this thread
  // never used, and would lose one that is not the device's primary context.
  (void)Driver::get().value()->context_set_current(context_before_);
  int now = -1;
  if (cudaGetDevice(&now) != cudaSuccess || now != before_) (void)cudaSetDevice(before_);
  (void)cudaGetLastError();
}

}  // namespace sluice::memory
