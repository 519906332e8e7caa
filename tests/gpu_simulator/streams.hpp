// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

/// Streams of the simulated GPU: queues, each with a thread that does what is in it.
namespace gpu_simulator {

using Work = std::function<void()>;

}  // namespace gpu_simulator

struct CUgraph_st {
  struct Node {
    gpu_simulator::Work work;
    std::vector<std::size_t> after;  // Nodes, by their places.
  };
  unsigned long long number;  // Of the capture, from 1.
  std::vector<Node> nodes;    // In the order of the calls that were captured.
};
/// One of the orders that the edges allow, far from that of the calls: of what may run next, what was captured last.
struct CUgraphExec_st {
  std::vector<gpu_simulator::Work> nodes;
};

struct CUevent_st {
  /// Outlives the handle: streams may still have work that waits for it.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0;
    std::uint64_t done = 0;
    std::uint64_t time_ns = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
  CUgraph_st* captured = nullptr;
  std::vector<std::size_t> after;  // Nodes of that.
};

struct CUstream_st {
 public:
  explicit CUstream_st(int device) : device_(device) {}

  int device() const noexcept { return device_; }
  /// To be done after all that was added before; where the stream is being captured, a node.
  void add(gpu_simulator::Work work);
  void synchronize();
  /// Nothing is added any more: goes away when all is done.
  void close();

  CUgraph_st* capture = nullptr;
  std::vector<std::size_t> after;  // Nodes that the next one of the capture comes after.

 private:
  void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<gpu_simulator::Work> queue_;
  std::uint64_t added_ = 0;
  std::uint64_t done_ = 0;
  bool started_ = false;
  bool closed_ = false;
};

namespace gpu_simulator {

/// Whoever launches on the GPU has it, and whoever waits for the GPU inside the driver: nothing is launched meanwhile.
std::mutex& launching(int device);
/// The stream that a handle stands for, one of the two special ones too.
CUstream_st& stream_of(cudaStream_t handle);

}  // namespace gpu_simulator
