// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace sluice::memory {

/// One region per rank, all mapped here. Move-only; the destructor unmaps (and, for the own region,
/// lets the memory go when no other rank maps it). Peers never notice.
class SharedRegion {
 public:
  struct Part {
    std::byte* base = nullptr;
    std::size_t bytes = 0;  // As mapped: rounded up to whole pages.
  };

  SharedRegion() = default;
  /// `release` undoes the mappings; it is called exactly once.
  SharedRegion(std::vector<Part> parts, std::function<void()> release)
      : parts_(std::move(parts)), release_(std::move(release)) {}
  SharedRegion(SharedRegion&& other) noexcept
      : parts_(std::move(other.parts_)), release_(std::exchange(other.release_, nullptr)) {}
  SharedRegion& operator=(SharedRegion&& other) noexcept {
    if (this != &other) {
      reset();
      parts_ = std::move(other.parts_);
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~SharedRegion() { reset(); }

  /// The region of `rank` as this rank sees it.
  std::byte* base(int rank) const noexcept { return parts_[static_cast<std::size_t>(rank)].base; }
  std::size_t bytes(int rank) const noexcept {
    return parts_[static_cast<std::size_t>(rank)].bytes;
  }

 private:
  void reset() noexcept {
    if (release_) std::exchange(release_, nullptr)();
    parts_.clear();
  }

  std::vector<Part> parts_;
  std::function<void()> release_;
};

}  // namespace sluice::memory
