// SPDX-License-Identifier: MIT
#include "sluice/status.hpp"

namespace sluice {

std::string_view to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid_argument";
    case StatusCode::mismatch: return "mismatch";
    case StatusCode::unavailable: return "unavailable";
    case StatusCode::deadline_exceeded: return "deadline_exceeded";
    case StatusCode::out_of_memory: return "out_of_memory";
    case StatusCode::io_error: return "io_error";
    case StatusCode::failed_precondition: return "failed_precondition";
    case StatusCode::unimplemented: return "unimplemented";
    case StatusCode::internal: return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  std::string text(sluice::to_string(code_));
  if (!message_.empty()) text += ": " + message_;
  return text;
}

}  // namespace sluice
