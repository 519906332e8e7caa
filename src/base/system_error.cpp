// SPDX-License-Identifier: MIT
#include "base/system_error.hpp"

#include <cerrno>
#include <cstring>

namespace sluice::base {

std::string error_text(int error) {
  const char* description = ::strerrordesc_np(error);
  const char* name = ::strerrorname_np(error);
  std::string text =
      description != nullptr ? description : "unknown error " + std::to_string(error);
  if (name != nullptr) text.append(" (").append(name).append(")");
  return text;
}

Status system_status(int error, const std::string& what) {
  StatusCode code = StatusCode::io_error;
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EFBIG:
    case EDQUOT:
    case EOVERFLOW: code = StatusCode::out_of_memory; break;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH: code = StatusCode::unavailable; break;
    default: break;
  }
  return Status(code, what + ": " + error_text(error));
}

}  // namespace sluice::base
