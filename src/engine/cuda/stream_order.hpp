// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include "sluice/status.hpp"

namespace sluice::engine::cuda {

/// The order of one communicator's operations: that of their calls, whatever their streams. So are those of one capture; graphs
/// and what is not captured are ordered by the streams on which they run.
class StreamOrder {
 public:
  /// `shared`: other ranks use this GPU, too, so that it must not be waited for as a whole.
  explicit StreamOrder(bool shared) noexcept : shared_(shared) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  /// Before a launch on `stream`: lets it wait for the last one, if that was on another. asks: capturing() must be right; asking
  /// takes time, and launches that follow one another on a stream can do without.
  Status follow(cudaStream_t stream, bool asks);
  /// After the launch.
  Status launched(cudaStream_t stream);
  /// Whether the launch between the two is captured, if that was asked.
  bool capturing() const noexcept { return capturing_; }
  /// Waits for all launches but those of graphs (if the GPU is not shared, for those as well).
  void wait();

 private:
  Status record(cudaStream_t stream);
  Status follow_captured(cudaStream_t stream, unsigned long long capture, cudaStream_t unasked);

  bool shared_;
  bool capturing_ = false;
  bool known_ = false;     // There was a launch,
  bool recorded_ = false;  // and event_ comes after it.
  cudaStream_t last_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaStream_t before_ = nullptr;    // Of the last launch, captured or not,
  bool asked_ = false;               // of which it is known which of the two.
  cudaStream_t captured_ = nullptr;  // Of the last one that is known to be,
  unsigned long long capture_ = 0;   // and the number of the capture.
  cudaEvent_t captured_event_ = nullptr;
};

}  // namespace sluice::engine::cuda
