// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry_launcher.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {

using protocol::HostAccess;

FerryPort::~FerryPort() {
  const memory::DeviceGuard guard(device);
  if (stream != nullptr) {
    // Its kernels wait for nobody.
    (void)cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
}

std::uint64_t Ferry::ended() const noexcept {
  // Pairs with the release store of ferry_kernel.
  return HostAccess::load_acquire(*reinterpret_cast<const std::uint64_t*>(
      port_.host + port_.ring + FerryPort::kItems * sizeof(FerryItem)));
}

bool Ferry::step() {
  for (const std::uint64_t over = ended(); !flights_.empty() && flights_.front().number <= over;
       flights_.pop_front()) {
    carried_ += flights_.front().items;
    free_ += flights_.front().items;
  }
  bool any = false;
  while (next_ < items_.size() && launch()) any = true;
  if (next_ == items_.size()) {
    items_.clear();
    next_ = 0;
  }
  return any;
}

// As many as there is room for, one after the other.
bool Ferry::launch() {
  const std::uint32_t left = FerryPort::kItems - place_;  // Before the ring's end.
  const auto count = static_cast<std::uint32_t>(
      std::min<std::size_t>(items_.size() - next_, std::min(left, free_)));
  if (count == 0) return false;
  const std::size_t from = port_.ring + place_ * sizeof(FerryItem);
  std::memcpy(port_.host + from, &items_[next_], count * sizeof(FerryItem));
  FerryArgs args = port_.args;
  args.items = reinterpret_cast<const FerryItem*>(port_.args.host + from);
  args.count = count;
  args.number = launched_ + 1;
  const memory::DeviceGuard guard(port_.device);
  const Status status = memory::cuda_status(
      static_cast<cudaError_t>(launch_ferry(args, port_.stream)), "launching a ferry");
  if (!status.ok())
    throw std::runtime_error(status.to_string());  // The thread gives all others up.
  flights_.push_back({++launched_, count});
  next_ += count;
  free_ -= count;
  place_ = (place_ + count) % FerryPort::kItems;
  return true;
}

}  // namespace sluice::engine::cuda
