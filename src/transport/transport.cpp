// SPDX-License-Identifier: MIT
#include "transport/transport.hpp"

namespace sluice::transport {

std::string_view to_string(SignalMode mode) noexcept {
  switch (mode) {
    case SignalMode::immediate: return "immediate";
    case SignalMode::ordered: return "ordered";
    case SignalMode::serial: return "serial";
  }
  return "unknown";
}

}  // namespace sluice::transport
