// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <utility>

#include "sluice/status.hpp"

namespace sluice::base {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  /// Owns what `open` returns, a call that makes a descriptor and does not wait, for this process alone: in a child
  /// that is forked from now on the number stays taken, and stands for nothing. A child that outlives its parent would keep
  /// the parent's connections open, and the others would not see that it has ended.
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
  void reset() noexcept;

 private:
  int number_ = -1;
  bool private_ = false;  // Noted as this process's own.
};

/// While it lives nothing forks. (What clones processes by itself, or by `_Fork`, does not ask.)
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;

  /// The descriptor is to stand for nothing in children. False: for want of memory or descriptors they get it.
  bool keep(int number) noexcept;
  /// One that is kept.
  void close(int number) noexcept;
};

template <typename Open>
Descriptor Descriptor::of_this_process(const Open& open) {
  NoFork meanwhile;
  Descriptor made(open());
  made.private_ = made.open() && meanwhile.keep(made.number_);
  return made;
}

/// Another descriptor of the same open file, closed on exec; closed if `original` is.
Result<Descriptor> duplicate(const Descriptor& original);

}  // namespace sluice::base
