// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace sluice::base {

/// First in, first out. Its memory stays, so that what goes through it again and again allocates nothing, and is at most
/// some four times what was ever in it at once, also where it is never empty.
template <typename T>
class Fifo {
 public:
  bool empty() const noexcept { return gone_ == items_.size(); }
  std::size_t size() const noexcept { return items_.size() - gone_; }
  /// From the first on.
  T& operator[](std::size_t i) noexcept { return items_[gone_ + i]; }
  T& front() noexcept { return items_[gone_]; }

  void push(T item) { items_.push_back(std::move(item)); }
  void pop() noexcept {
    ++gone_;
    // Then fewer are moved than have gone since they were moved last.
    if (gone_ < items_.size() && (gone_ < kGoneMin || 2 * gone_ < items_.size())) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(gone_));
    gone_ = 0;
  }
  /// The first `size` of them stay.
  void truncate(std::size_t size) { items_.resize(gone_ + size); }
  void clear() noexcept {
    items_.clear();
    gone_ = 0;
  }
  /// Room, for items that have gone, too.
  std::size_t capacity() const noexcept { return items_.capacity(); }

 private:
  static constexpr std::size_t kGoneMin = 64;

  std::vector<T> items_;
  std::size_t gone_ = 0;
};

}  // namespace sluice::base
