// SPDX-License-Identifier: MIT
#include "api/guarded.hpp"

#include <exception>
#include <new>

namespace sluice::api {

Status status_of_caught() noexcept {
  StatusCode code = StatusCode::internal;
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      code = StatusCode::out_of_memory;
      return {code, "too little memory for the host's own bookkeeping"};
    } catch (const std::exception& error) {
      return {code, error.what()};
    } catch (...) {
      return {code, "something was thrown that is no std::exception"};
    }
  } catch (...) {
    return {code, "no memory left"};  // So short that a string needs none for it.
  }
}

}  // namespace sluice::api
