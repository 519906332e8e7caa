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
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int number() const noexcept { return number_; }
  bool open() const noexcept { return number_ >= 0; }
  void reset() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

/// Another descriptor of the same open file, closed on exec; closed if `original` is.
Result<Descriptor> duplicate(const Descriptor& original);

}  // namespace sluice::base
