// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include "memory/cuda/cuda_status.hpp"

namespace sluice::bench {

/// One of CUDA's objects.
template <typename Handle, cudaError_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (void)destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const noexcept { return handle_; }
  Handle* put() noexcept { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Graph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Stream = Owned<cudaStream_t, cudaStreamDestroy>;

/// Between two events that have happened.
inline Result<double> microseconds_between(const Event& begin, const Event& end) {
  float milliseconds = 0.0F;
  Status status = memory::cuda_status(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                                      "the time between two events");
  if (!status) return status;
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace sluice::bench
