// SPDX-License-Identifier: MIT
#include "gpu.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace moe {

using sluice::Status;
using sluice::StatusCode;

Gpu::Gpu(int device) : device_(device) {
  check(cudaSetDevice(device), "choosing the GPU");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
}

Gpu::~Gpu() {
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  for (void* const memory : memory_) (void)cudaFree(memory);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

void Gpu::check(cudaError_t error, const char* what) {
  if (error == cudaSuccess || !status_) return;
  status_ = Status(StatusCode::internal, std::string(what) + ": " + cudaGetErrorName(error) + ", " +
                                             cudaGetErrorString(error));
}

void Gpu::check(const Status& status, const char* what) {
  if (status || !status_) return;
  status_ = Status(status.code(), std::string(what) + ": " + status.message());
}

const Status& Gpu::finish() {
  check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  return status_;
}

void* Gpu::allocate_bytes(std::size_t bytes) {
  void* memory = nullptr;
  // A rank may have no tokens or no experts; a pointer it has all the same.
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "GPU memory");
  if (memory != nullptr) memory_.push_back(memory);
  return memory;
}

void Gpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == nullptr) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "a copy");
  finish();
}

void Gpu::record(cudaEvent_t event) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &capture), "the stream");
  // Without the flag a captured event is nothing but an edge of the graph, and has no time.
  const unsigned flags =
      capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  check(cudaEventRecordWithFlags(event, stream_, flags), "an event");
}

bool Graph::begin() {
  // What other threads of this process do with CUDA is their own affair.
  gpu_.check(cudaStreamBeginCapture(gpu_.stream(), cudaStreamCaptureModeThreadLocal), "a capture");
  return gpu_.status().ok();
}

void Graph::end() {
  cudaGraph_t graph = nullptr;
  gpu_.check(cudaStreamEndCapture(gpu_.stream(), &graph), "the end of a capture");
  if (graph == nullptr) return;
  gpu_.check(cudaGraphInstantiate(&executable_, graph, 0), "a graph");
  gpu_.check(cudaGraphDestroy(graph), "a graph");
}

Graph::~Graph() {
  if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
}

void Graph::launch() {
  gpu_.check(cudaGraphLaunch(executable_, gpu_.stream()), "launching a graph");
}

int count_gpus() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return 0;
  if (child == 0) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    _exit(std::min(count, 255));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

std::string name_of_gpu(int device) {
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return "unknown";
  return properties.name;
}

}  // namespace moe
