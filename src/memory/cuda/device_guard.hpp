// SPDX-License-Identifier: MIT
#pragma once

#include <cuda.h>

#include "sluice/status.hpp"

namespace sluice::memory {

/// Makes `device` the calling thread's current one, and at its end what was before it. Costs two look-ups where it is
/// current already.
///
/// By its context, not by cudaSetDevice: the way back to a GPU that the thread has not used yet would make a context there,
/// which takes a second, and memory of that GPU.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  /// The same, in one look-up where the current context is `own`, which must be one of `device` (current_context()).
  DeviceGuard(int device, CUcontext own);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  /// Not ok: no driver, or no such device; nothing was changed.
  const Status& status() const noexcept { return status_; }

 private:
  DeviceGuard() = default;
  void enter(int device);

  Status status_;
  bool entered_ = false;
};

/// The calling thread's context; null: it has none.
CUcontext current_context() noexcept;

}  // namespace sluice::memory
