// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/cuda/ferry.hpp"
#include "memory/cuda/device_memory.hpp"
#include "memory/cuda/device_pool.hpp"
#include "window/host_lanes.hpp"

/// The host's side of the ferry (ferry.hpp): what it needs on a GPU, and its launches.
namespace sluice::engine::cuda {

/// What the progress thread of a rank needs on its GPU. It may need it for longer than the engine does.
struct FerryPort {
  int device = 0;
  FerryArgs args;             // But for what changes from launch to launch.
  void* stream = nullptr;     // Its own: cudaStream_t.
  std::byte* host = nullptr;  // This rank's host memory.
  std::size_t ring = 0;  // Offset of items[kItems] there, then of the word that launches count up.
  window::PacketLayout layout;
  std::vector<window::HostLanes> lanes;  // [R]
  std::shared_ptr<std::vector<memory::DeviceMemory>> windows;
  std::shared_ptr<memory::DevicePool> pool;
  std::shared_ptr<void> blocks;
  std::shared_ptr<void> board;   // A Board: whom the kernels have given up.
  std::shared_ptr<void> memory;  // `host`, pinned.

  static constexpr std::uint32_t kItems = 8192;
  static constexpr std::size_t kRingBytes = kItems * sizeof(FerryItem) + window::kLineBytes;

  FerryPort() = default;
  ~FerryPort();
  FerryPort(const FerryPort&) = delete;
  FerryPort& operator=(const FerryPort&) = delete;
};

/// Launches the kernel that carries items.
class Ferry {
 public:
  explicit Ferry(const FerryPort& port) : port_(port) {}

  void add(const FerryItem& item) {
    items_.push_back(item);
    ++added_;
  }
  /// Launches what there is room for; whether anything was. Throws where CUDA fails.
  bool step();
  /// How many items were added, and how many of them, in this order, have been carried.
  std::uint64_t added() const noexcept { return added_; }
  std::uint64_t carried() const noexcept { return carried_; }
  bool idle() const noexcept { return carried_ == added_; }

 private:
  /// A launch under way.
  struct Flight {
    std::uint64_t number;
    std::uint32_t items;
  };

  bool launch();
  std::uint64_t ended() const noexcept;

  const FerryPort& port_;
  std::vector<FerryItem> items_;
  std::size_t next_ = 0;  // Of these, the first that is not under way.
  std::deque<Flight> flights_;
  std::uint64_t launched_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t carried_ = 0;
  std::uint32_t place_ = 0;  // In the ring.
  std::uint32_t free_ = FerryPort::kItems;
};

}  // namespace sluice::engine::cuda
