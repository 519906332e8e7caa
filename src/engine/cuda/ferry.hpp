// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels.hpp"

/// From host memory, where the network brings it, into the lanes of GPUs of this node.
namespace sluice::engine::cuda {

/// Something that is copied, or one word that is told.
struct alignas(16) FerryItem {
  static constexpr std::uint8_t kPackets = 0;
  static constexpr std::uint8_t kTold = 1;

  std::uint32_t from;  // kPackets: offset in host memory, in packets. kTold: the word's lower half.
  std::uint32_t to;    // Offset in the lane.
  std::uint32_t extent;  // kPackets: how many, one after the other. kTold: the word's upper half.
  std::uint16_t ranks;   // Whose lanes: one bit for each.
  std::uint8_t source;   // Of which rank.
  std::uint8_t what;
};
static_assert(sizeof(FerryItem) == 16 && kPeersMax <= 16);

/// One launch.
struct FerryArgs {
  const std::byte* host = nullptr;     // This rank's host memory, as its GPU sees it.
  std::byte* windows[kPeersMax] = {};  // Of the ranks of this node.
  window::PacketLayout layout;
  const FerryItem* items = nullptr;  // In host memory.
  std::uint32_t count = 0;
  std::uint32_t* blocks = nullptr;  // Device memory, zero between launches.
  std::uint64_t* done = nullptr;    // Host memory: number of the last launch that has ended.
  std::uint64_t number = 0;
};

/// Both return a cudaError_t.
int launch_ferry(const FerryArgs& args, void* stream);
int load_ferry_kernel();

}  // namespace sluice::engine::cuda
