// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <utility>

#include "sluice/status.hpp"

namespace sluice::base {

/// While it lives nothing forks. (What clones processes by itself, or by `_Fork`, does not ask.) One at a time in a thread.
class NoFork {
 public:
  NoFork() noexcept;
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  /// Owns a descriptor that was made while nothing forked (NoFork), for this process alone: in a child that is forked from now
  /// on the number stays taken, and stands for nothing. A child that outlives its parent would keep the parent's connections
  /// open, and the others would not see that it has ended.
  Descriptor(const NoFork& meanwhile, int number) noexcept;
  /// Likewise what `open` returns, a call that makes a descriptor and does not wait.
  template <typename Open>
  static Descriptor of_this_process(const Open& open);

  Descriptor(Descriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)), private_(std::exchange(other.private_, false)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
      private_ = std::exchange(other.private_, false);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int number() const noexcept { return number_; }
  bool open() const noexcept { return number_ >= 0; }
  /// Whether children do not have it.
  bool is_private() const noexcept { return private_; }
  void reset() noexcept;

 private:
  int number_ = -1;
  bool private_ = false;  // Noted as this process's own.
};

template <typename Open>
Descriptor Descriptor::of_this_process(const Open& open) {
  const NoFork meanwhile;
  return Descriptor(meanwhile, open());
}

/// Another descriptor of the same open file, closed on exec, and this process's alone if the original is; closed if `original` is.
Result<Descriptor> duplicate(const Descriptor& original);

}  // namespace sluice::base
