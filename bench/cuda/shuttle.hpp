// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/status.hpp"

namespace sluice::bench {

/// Kernels that do nothing but bring bytes from a device to pinned memory of its host, and others from there to the device: the
/// ends of what NetworkMeter calls the bare way. Operations are numbered from 1 on, and those of one number share a half of
/// the memory with those two before and behind.
class Shuttle {
 public:
  /// Of a half. Both are multiples of kUnit.
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr std::uint64_t kUnit = 16;
  static constexpr int kPiecesMax = 64;

  virtual ~Shuttle() = default;

  /// What the network reads and writes, and where in it the halves of an operation begin: what goes out, and what comes in.
  virtual std::span<std::byte> memory() const noexcept = 0;
  virtual std::uint64_t out_at(std::uint64_t operation) const noexcept = 0;
  virtual std::uint64_t in_at(std::uint64_t operation) const noexcept = 0;

  /// Queues `operations`, of which `last` is the last, so that time() leaves out all but the latter `timed`. Nothing of them is
  /// waited for. The pieces, at most kPiecesMax each, are all that is brought.
  virtual Status launch(std::span<const Piece> out, std::span<const Piece> in, int operations,
                        int timed) = 0;
  /// The number of the last one that was queued.
  virtual std::uint64_t last() const noexcept = 0;
  /// Whether a piece of an operation that goes out is all there. Acquire.
  virtual bool is_out(int piece, std::uint64_t operation) const noexcept = 0;
  /// That a piece has come, the `nth` of its operation. Release.
  virtual void has_come(int nth, int piece, std::uint64_t operation) noexcept = 0;
  /// Waits for all that was queued. Microseconds of one timed operation, by the device's clock; deadline_exceeded if a kernel gave up.
  virtual Result<double> time() = 0;
  /// What goes out of, and what has come to, the device. After time(), or before anything. The first 8 bytes of every piece are
  /// the number of the operation that brought it.
  virtual Status fill(std::span<const std::byte> out) = 0;
  virtual Status read(std::span<std::byte> in) = 0;
};

}  // namespace sluice::bench
