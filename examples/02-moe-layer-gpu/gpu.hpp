// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <sluice/status.hpp>

namespace moe {

/// A rank's GPU: its stream, its memory, and the first thing that went wrong on it.
///
/// Every CUDA call and every Sluice call goes through check(), which keeps the first failure. So
/// work is queued step by step, without a question after each, and finish() has the answer. A rank
/// whose call has failed still makes the other calls of its layer, as its peers do.
class Gpu {
 public:
  explicit Gpu(int device);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int device() const noexcept { return device_; }
  /// Of its own, and non-blocking: it waits for nobody's default stream.
  cudaStream_t stream() const noexcept { return stream_; }

  void check(cudaError_t error, const char* what);
  void check(const sluice::Status& status, const char* what);
  const sluice::Status& status() const noexcept { return status_; }
  /// Waits for the stream. The first failure so far, that of the queued work included.
  const sluice::Status& finish();

  /// Memory that lives as long as this object; null, and status() says why, when there is none.
  template <typename T>
  T* allocate(std::size_t count) {
    return static_cast<T*>(allocate_bytes(count * sizeof(T)));
  }
  template <typename T>
  const T* upload(const std::vector<T>& from) {
    T* const to = allocate<T>(from.size());
    copy(to, from.data(), from.size() * sizeof(T));
    return to;
  }
  /// Either may be the host's memory. Waits for the stream.
  void copy(void* to, const void* from, std::size_t bytes);

  /// On the stream; in a stream that is captured, as a node of the graph.
  void record(cudaEvent_t event);

 private:
  void* allocate_bytes(std::size_t bytes);

  int device_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
  sluice::Status status_;
};

/// What was queued between begin and end of a capture, to be launched again and again.
class Graph {
 public:
  /// Captures what `queue` puts on the GPU's stream; nothing of it runs yet.
  template <typename Queue>
  Graph(Gpu& gpu, const Queue& queue) : gpu_(gpu) {
    if (!begin()) return;
    queue();
    end();
  }
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch();

 private:
  bool begin();
  void end();

  Gpu& gpu_;
  cudaGraphExec_t executable_ = nullptr;
};

/// GPUs that CUDA sees, asked in a process of its own: a process that has used CUDA must not fork,
/// and ranks are forked later.
int count_gpus();

/// How a GPU calls itself.
std::string name_of_gpu(int device);

}  // namespace moe
