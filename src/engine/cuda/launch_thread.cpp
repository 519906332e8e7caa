// SPDX-License-Identifier: MIT
#include "engine/cuda/launch_thread.hpp"

#include <utility>

#include "base/background_thread.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::engine::cuda {
namespace {

constexpr std::uint64_t kNoMore = ~std::uint64_t{0};

}  // namespace

LaunchThread::LaunchThread(int device, std::function<Status(std::uint64_t number)> launch)
    : device_(device), launch_(std::move(launch)) {
  thread_ = base::start_background_thread("sluice-launch", [this] { run(); });
}

LaunchThread::~LaunchThread() {
  launch(kNoMore);
  thread_.join();
}

void LaunchThread::launch(std::uint64_t number) {
  wanted_.store(number, std::memory_order_release);  // Pairs with the load in run().
  wanted_.notify_one();
}

Status LaunchThread::status() const {
  // Pairs with the store in run().
  return failed_.load(std::memory_order_acquire) ? status_ : Status();
}

void LaunchThread::run() {
  const memory::DeviceGuard gpu(device_);
  Status status = gpu.status();
  for (std::uint64_t launched = 0; status.ok();) {
    wanted_.wait(launched, std::memory_order_acquire);
    // Pairs with the store in launch().
    const std::uint64_t wanted = wanted_.load(std::memory_order_acquire);
    if (wanted == kNoMore) return;
    while (launched < wanted && status.ok()) status = launch_(++launched);
  }
  status_ = std::move(status);
  failed_.store(true, std::memory_order_release);  // Pairs with the load in status().
}

}  // namespace sluice::engine::cuda
