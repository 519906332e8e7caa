// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

namespace sluice::base {

/// The process that made an object with threads or connections: in a forked child it has neither.
class OwnProcess {
 public:
  bool forked() const noexcept { return number_ != ::getpid(); }
  int number() const noexcept { return number_; }

 private:
  int number_ = ::getpid();
};

}  // namespace sluice::base
