// SPDX-License-Identifier: MIT
#pragma once

#include "bootstrap/group.hpp"
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

/// The same of a collective call: where it is cut short so, others may be in the midst of it, and the next one would not fit.
template <typename Call>
auto guarded_for_all(bootstrap::Group& group, const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    Status status = status_of_caught();
    group.give_up(status);
    return status;
  }
}

}  // namespace sluice::api
