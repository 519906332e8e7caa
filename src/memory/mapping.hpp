// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// Owns a readable and writable mapping of whole pages; empty for 0 bytes.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Zeroed memory of this process alone. `committed`: taken now.
  static Result<Mapping> anonymous(std::size_t bytes, bool committed);
  /// The first `bytes` bytes of a file that is at least as long, shared.
  static Result<Mapping> of_file(const base::Descriptor& file, std::size_t bytes);

  std::byte* base() const noexcept { return base_; }
  /// As mapped: rounded up to whole pages.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Mapping(std::byte* base, std::size_t bytes) noexcept : base_(base), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A zeroed file in memory, without a name, `bytes` long after rounding up to pages. It goes away
/// with its last descriptor and mapping. `committed`: the memory is taken now. Too little memory,
/// and a limit on file sizes, give out_of_memory, never a signal.
Result<base::Descriptor> create_memory_file(std::size_t bytes, bool committed);

}  // namespace sluice::memory
