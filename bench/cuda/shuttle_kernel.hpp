// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "shuttle.hpp"

namespace sluice::bench {

/// What one kernel of a shuttle is given. All memory of the host is pinned.
struct ShuttleArgs {
  static constexpr int kBlocksMax = 8;

  std::uint64_t operation = 0;
  std::uint64_t give_up_ns = 0;  ///< After so long a wait.
  const std::byte* from =
      nullptr;  ///< The device's: what goes out, and where to what comes in is brought.
  std::byte* to = nullptr;
  std::byte* out = nullptr;  ///< The host's, of the operation's half.
  const std::byte* in = nullptr;
  std::uint64_t* written =
      nullptr;  ///< [outs][kBlocksMax], the host's: up to which operation a block has done its part.
  const std::uint64_t* come =
      nullptr;  ///< [ins], of the operation's half, the host's: shuttle_word(), in the order of coming.
  std::uint64_t* seen = nullptr;  ///< [ins], the device's: what the first block has seen of `come`.
  std::uint64_t* gave_up = nullptr;  ///< The host's.
  int outs = 0;
  int ins = 0;
  Shuttle::Piece out_pieces[Shuttle::kPiecesMax] = {};
  Shuttle::Piece in_pieces[Shuttle::kPiecesMax] = {};
};

constexpr std::uint64_t shuttle_word(std::uint64_t operation, int piece) noexcept {
  return operation * Shuttle::kPiecesMax + static_cast<std::uint64_t>(piece);
}

/// Queues it on a stream (a cudaStream_t), where it starts early. Returns CUDA's error code.
int launch_shuttle(const ShuttleArgs& args, int blocks, void* stream);

}  // namespace sluice::bench
