// SPDX-License-Identifier: MIT
#include "engine/cuda/stream_order.hpp"

#include "memory/cuda/cuda_status.hpp"

namespace sluice::engine::cuda {
namespace {

using memory::cuda_status;

Status ask_capture(cudaStream_t stream, bool& capturing) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  Status status = cuda_status(cudaStreamIsCapturing(stream, &capture), "stream");
  capturing = status.ok() && capture != cudaStreamCaptureStatusNone;
  return status;
}

}  // namespace

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

Status StreamOrder::record(cudaStream_t stream) {
  if (event_ == nullptr) {
    if (Status status =
            cuda_status(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
        !status.ok()) {
      return status;
    }
  }
  Status status = cuda_status(cudaEventRecord(event_, stream), "event");
  recorded_ = status.ok();
  return status;
}

Status StreamOrder::follow(cudaStream_t stream, bool asks) {
  capturing_ = false;
  // What is not recorded here need not be known to be captured: on the same stream it is in order either way.
  if (!asks && !shared_ && known_ && stream == last_) return {};
  if (Status status = ask_capture(stream, capturing_); !status.ok() || capturing_) return status;
  if (!known_ || stream == last_) return {};
  if (!recorded_) {
    bool last_captures = false;
    if (Status status = ask_capture(last_, last_captures); !status.ok()) return status;
    if (last_captures) {
      return {StatusCode::failed_precondition,
              "a call on another stream while that of the call before is being captured: expected "
              "calls in the order in which they are to run"};
    }
    if (Status status = record(last_); !status.ok()) return status;
  }
  return cuda_status(cudaStreamWaitEvent(stream, event_), "event");
}

Status StreamOrder::launched(cudaStream_t stream) {
  if (capturing_) return {};
  last_ = stream;
  known_ = true;
  recorded_ = false;
  // Where the GPU is not shared the next kernel may start early, which an event between would forbid.
  return shared_ ? record(stream) : Status();
}

void StreamOrder::wait() {
  if (!shared_) {
    (void)cudaDeviceSynchronize();
  } else if (recorded_) {
    (void)cudaEventSynchronize(event_);
  }
}

}  // namespace sluice::engine::cuda
