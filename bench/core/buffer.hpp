// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>

#include "sluice/status.hpp"

namespace sluice::bench {

/// Anonymous pages, taken when touched: sparse layouts may be far larger than what is used.
class Buffer {
 public:
  enum class Pages { normal, huge };

  Buffer() = default;
  static Result<Buffer> make(std::size_t bytes, Pages pages = Pages::normal);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Buffer(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::bench
