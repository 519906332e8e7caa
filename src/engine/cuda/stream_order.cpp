// SPDX-License-Identifier: MIT
#include "engine/cuda/stream_order.hpp"

#include "memory/cuda/cuda_status.hpp"

namespace sluice::engine::cuda {
namespace {

using memory::cuda_status;

/// number: of what is captured on the stream, 0 if nothing is, or what is is not valid any more.
Status ask_capture(cudaStream_t stream, bool& capturing, unsigned long long& number) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  unsigned long long seen = 0;
  Status status = cuda_status(cudaStreamGetCaptureInfo(stream, &capture, &seen), "stream");
  capturing = status.ok() && capture != cudaStreamCaptureStatusNone;
  number = status.ok() && capture == cudaStreamCaptureStatusActive ? seen : 0;
  return status;
}

/// The legacy default stream, which cannot be captured, may not even be asked while others are.
bool is_part_of(unsigned long long capture, cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return false;
  bool capturing = false;
  unsigned long long number = 0;
  return ask_capture(stream, capturing, number).ok() && number == capture;
}

Status make_event(cudaEvent_t& event) {
  if (event != nullptr) return {};
  return cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
}

}  // namespace

StreamOrder::~StreamOrder() {
  for (cudaEvent_t const event : {event_, captured_event_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

Status StreamOrder::record(cudaStream_t stream) {
  if (Status status = make_event(event_); !status.ok()) return status;
  Status status = cuda_status(cudaEventRecord(event_, stream), "event");
  recorded_ = status.ok();
  return status;
}

Status StreamOrder::follow(cudaStream_t stream, bool asks) {
  capturing_ = false;
  // What is not recorded here need not be known to be captured: on the same stream it is in order either way.
  if (!asks && !shared_ && known_ && stream == last_ && stream == before_) {
    asked_ = false;
    return {};
  }
  cudaStream_t const unasked = asked_ ? nullptr : before_;
  before_ = stream;
  asked_ = true;
  unsigned long long capture = 0;
  if (Status status = ask_capture(stream, capturing_, capture); !status.ok()) return status;
  if (capturing_) return follow_captured(stream, capture, unasked);
  if (!known_ || stream == last_) return {};
  if (!recorded_) {
    bool last_captures = false;
    unsigned long long last_capture = 0;
    if (Status status = ask_capture(last_, last_captures, last_capture); !status.ok())
      return status;
    if (last_captures) {
      return {StatusCode::failed_precondition,
              "a call on another stream while that of the call before is being captured: expected "
              "calls in the order in which they are to run"};
    }
    if (Status status = record(last_); !status.ok()) return status;
  }
  return cuda_status(cudaStreamWaitEvent(stream, event_), "event");
}

// An edge of the graph from the last launch before that is part of it. unasked: the stream of the last one of all, if it may be
// that one; it comes after those that are known to be.
Status StreamOrder::follow_captured(cudaStream_t stream, unsigned long long capture,
                                    cudaStream_t unasked) {
  if (capture == 0) return {};  // The launch will say what is wrong.
  cudaStream_t last = capture == capture_ ? captured_ : stream;
  if (is_part_of(capture, unasked)) last = unasked;
  captured_ = stream;
  capture_ = capture;
  if (last == stream) return {};
  if (Status status = make_event(captured_event_); !status.ok()) return status;
  Status status = cuda_status(cudaEventRecord(captured_event_, last), "event");
  if (!status.ok()) return status;
  return cuda_status(cudaStreamWaitEvent(stream, captured_event_), "event");
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
