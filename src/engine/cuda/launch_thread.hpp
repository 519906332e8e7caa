// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "sluice/status.hpp"

namespace sluice::engine::cuda {

/// Launches kernels for a thread that must not stand still. CUDA lets no thread of a process launch anything while another is in
/// a call that waits for the GPU inside the driver (cudaFree, cudaHostRegister, the first launch of a kernel), for as long as
/// whatever runs there takes; and whose progress thread stands still is given up.
class LaunchThread {
 public:
  /// `launch` is called with the number of each launch, in their order, in a thread whose current GPU is `device`.
  LaunchThread(int device, std::function<Status(std::uint64_t number)> launch);
  /// Waits for the launch that is under way.
  ~LaunchThread();
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  /// Up to `number`, which only grows. Returns at once.
  void launch(std::uint64_t number);
  /// Of the launches so far; the first that failed is the last.
  Status status() const;

 private:
  void run();

  const int device_;
  const std::function<Status(std::uint64_t number)> launch_;
  std::atomic<std::uint64_t> wanted_{0};
  std::atomic<bool> failed_{false};
  Status status_;  // Written before failed_ is.
  std::thread thread_;
};

}  // namespace sluice::engine::cuda
