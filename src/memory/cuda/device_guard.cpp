// SPDX-License-Identifier: MIT
#include "memory/cuda/device_guard.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/driver.hpp"

namespace sluice::memory {
namespace {

/// The context that CUDA's runtime uses on a GPU, once it is known, and kept as it keeps it: to the end of the process.
Result<CUcontext> primary_context(const Driver& driver, int device) {
  static std::array<std::atomic<CUcontext>, 64> all{};
  if (device < 0 || device >= static_cast<int>(all.size())) {
    return cuda_status(cudaErrorInvalidDevice, "cannot use " + gpu_text(device));
  }
  std::atomic<CUcontext>& known = all[static_cast<std::size_t>(device)];
  CUcontext context = known.load(std::memory_order_acquire);  // Pairs with the store below.
  if (context != nullptr) return context;
  const std::string what = "cannot use " + gpu_text(device);
  int count = 0;
  // Which also starts the driver.
  if (Status status = cuda_status(cudaGetDeviceCount(&count), what); !status.ok()) return status;
  CUdevice handle = 0;
  CUresult error = driver.device_get(&handle, device);
  if (error == CUDA_SUCCESS) error = driver.primary_context_retain(&context, handle);
  if (error != CUDA_SUCCESS) return cuda_status(error, what);
  known.store(context, std::memory_order_release);
  return context;
}

}  // namespace

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
  int before = 0;
  status_ = cuda_status(cudaGetDevice(&before), "cannot ask for the current GPU");
  if (!status_.ok() || (before == device && current_context() != nullptr)) return;
  const auto driver = Driver::get();
  status_ = driver.status();
  if (!status_.ok()) return;
  const auto context = primary_context(**driver, device);
  status_ = context.status();
  if (!status_.ok()) return;
  status_ = cuda_status((*driver)->context_push(*context), "cannot make a GPU current");
  entered_ = status_.ok();
}

DeviceGuard::~DeviceGuard() {
  if (!entered_) return;
  CUcontext context = nullptr;
  (void)(*Driver::get())->context_pop(&context);
}

}  // namespace sluice::memory
