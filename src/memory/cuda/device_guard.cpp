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

/// Makes the context current that CUDA's runtime uses on a GPU.
Status push_primary(const Driver& driver, int device) {
  // Retained once: cudaDeviceReset ends the context, after which it is retained again.
  static std::array<std::atomic<CUcontext>, 64> all{};
  const auto place = static_cast<std::size_t>(device);
  if (device < 0 || place >= all.size()) {
    return cuda_status(cudaErrorInvalidDevice, "cannot use " + gpu_text(device));
  }
  CUcontext context = all[place].load(std::memory_order_acquire);  // Pairs with the store below.
  if (context != nullptr && driver.context_push(context) == CUDA_SUCCESS) return {};
  const std::string what = "cannot use " + gpu_text(device);
  int count = 0;
  // Which also starts the driver.
  if (Status status = cuda_status(cudaGetDeviceCount(&count), what); !status.ok()) return status;
  CUdevice handle = 0;
  CUresult error = driver.device_get(&handle, device);
  if (error == CUDA_SUCCESS) error = driver.primary_context_retain(&context, handle);
  if (error == CUDA_SUCCESS) error = driver.context_push(context);
  if (error != CUDA_SUCCESS) return cuda_status(error, what);
  all[place].store(context, std::memory_order_release);
  return {};
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
  status_ = push_primary(**driver, device);
  entered_ = status_.ok();
}

DeviceGuard::~DeviceGuard() {
  if (!entered_) return;
  CUcontext context = nullptr;
  (void)(*Driver::get())->context_pop(&context);
}

}  // namespace sluice::memory
