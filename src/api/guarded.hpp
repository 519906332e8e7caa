// SPDX-License-Identifier: MIT
#pragma once

#include "sluice/status.hpp"

namespace sluice::api {

/// What is being handled, in words: from a catch block. The standard library's exceptions, above all that
/// there is no memory, and those of code that a caller supplied.
Status status_of_caught() noexcept;

/// Nothing throws across the public API: exceptions end here. `Call` returns a Status, or a Result.
template <typename Call>
auto guarded(const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return status_of_caught();
  }
}

}  // namespace sluice::api
