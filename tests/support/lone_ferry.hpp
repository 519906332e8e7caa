// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "engine/cuda/ferry_launcher.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/pinned_memory.hpp"

namespace sluice::testing {

/// What a ferry needs, by itself: one rank (0) of one GPU, and one of another node (kOther), which it serves and whose sums it
/// brings. Nothing comes from a network: items, and what they speak of, are the caller's.
///   host memory := [lane in] [lane out] [rings]
///   window      := [lanes of 2 ranks] [answers of kPlaces ranks of this node] [sums of the other node]
class LoneFerry {
 public:
  static constexpr int kOther = 1;
  static constexpr int kPlaces = 2;

  static bool has_gpu() {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  }

  static Result<std::unique_ptr<LoneFerry>> make(const window::PacketShape& shape, int hidden) {
    std::unique_ptr<LoneFerry> lone(new LoneFerry);
    Status status = lone->fill(shape, hidden);
    if (!status.ok()) return status;
    lone->ferry_.emplace(lone->port_);
    return lone;
  }

  engine::cuda::Ferry& ferry() noexcept { return *ferry_; }
  const window::PacketLayout& layout() const noexcept { return port_.layout; }

  // Offsets in host memory, and where that is.
  std::size_t in() const noexcept { return 0; }
  std::size_t out() const noexcept { return layout().lane_bytes(); }
  std::size_t host_bytes() const noexcept { return port_.rings; }
  std::byte* host(std::size_t offset) const noexcept { return port_.host + offset; }
  // Offsets in the window.
  std::size_t lane() const noexcept { return layout().lane(kOther); }
  std::size_t answers(int place) const noexcept { return layout().lane(2 + place); }
  std::size_t sums() const noexcept { return answers(kPlaces); }

  Status read(void* to, std::size_t offset, std::size_t bytes) const {
    return port_.pool->write(to, port_.args.windows[0] + offset, bytes);
  }
  Status write(std::size_t offset, const void* from, std::size_t bytes) const {
    return port_.pool->write(port_.args.windows[0] + offset, from, bytes);
  }

  /// What operations would have written.
  Status set_worked(const engine::cuda::Worked& worked) {
    return port_.pool->write(port_.args.worked, &worked, sizeof(worked));
  }

  /// Of what has been launched.
  void await_end() const {
    static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(port_.stream)));
  }

  /// Until all that was added has been carried; false after ten seconds.
  bool carry_all() {
    const auto deadline = base::Deadline::after(std::chrono::seconds(10));
    while (!ferry_->idle()) {
      if (deadline.expired()) return false;
      if (!ferry_->step()) std::this_thread::yield();
    }
    return true;
  }

 private:
  LoneFerry() = default;

  Status fill(const window::PacketShape& shape, int hidden) {
    engine::cuda::FerryArgs& args = port_.args;
    port_.layout = window::PacketLayout(shape);
    port_.rings = 2 * layout().lane_bytes();
    auto pool = memory::DevicePool::create(0);
    if (!pool) return pool.status();
    port_.pool = *pool;
    auto host = memory::take_pinned(port_.rings + engine::cuda::kFerryHostBytes);
    if (!host) return host.status();
    port_.memory = *host;
    port_.host = static_cast<std::byte*>(port_.memory.get());
    void* seen = nullptr;
    Status status = memory::cuda_status(cudaHostGetDevicePointer(&seen, port_.host, 0), "mapping");
    if (!status.ok()) return status;
    const std::size_t window_bytes = sums() + layout().lane_bytes();
    window_ = port_.pool->take(window_bytes);
    port_.state = port_.pool->take(sizeof(engine::cuda::FerryState));
    port_.worked = port_.pool->take(sizeof(engine::cuda::Worked));
    if (window_ == nullptr || port_.state == nullptr || port_.worked == nullptr) {
      return {StatusCode::out_of_memory, "no GPU memory for a ferry"};
    }
    status = port_.pool->write(window_.get(), nullptr, window_bytes);
    if (status.ok()) {
      status = port_.pool->write(port_.state.get(), nullptr, sizeof(engine::cuda::FerryState));
    }
    if (status.ok()) {
      status = port_.pool->write(port_.worked.get(), nullptr, sizeof(engine::cuda::Worked));
    }
    if (!status.ok()) return status;
    cudaStream_t stream = nullptr;
    status =
        memory::cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    if (!status.ok()) return status;
    port_.stream = stream;
    status = memory::cuda_status(static_cast<cudaError_t>(engine::cuda::load_ferry_kernel()),
                                 "loading kernels");
    if (!status.ok()) return status;
    args.host = static_cast<std::byte*>(seen);
    args.windows[0] = static_cast<std::byte*>(window_.get());
    args.lanes_in[kOther] = args.row_lanes_in[kOther] = args.host + in();
    args.lanes_out[kOther] = args.row_lanes_out[kOther] = args.host + out();
    args.partials[kOther] = answers(0);
    args.partial_stride = answers(1) - answers(0);
    args.sums[kOther] = sums();
    args.hidden = hidden;
    args.layout = port_.layout;
    args.state = static_cast<engine::cuda::FerryState*>(port_.state.get());
    args.worked = static_cast<engine::cuda::Worked*>(port_.worked.get());
    args.items = reinterpret_cast<const engine::cuda::FerryItem*>(args.host + port_.rings);
    args.counts = args.host + port_.rings + engine::cuda::kFerryItemsBytes;
    return {};
  }

  std::shared_ptr<void> window_;
  engine::cuda::FerryPort port_;
  std::optional<engine::cuda::Ferry> ferry_;
};

}  // namespace sluice::testing
