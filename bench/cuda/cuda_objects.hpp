// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

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

}  // namespace sluice::bench
