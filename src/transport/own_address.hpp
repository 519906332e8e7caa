// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "sluice/status.hpp"

namespace sluice::transport {

/// The numbers of an address at which this machine can be reached, given them or a host name. invalid_argument, with the
/// reason: it is none, as that of another machine, of all interfaces, of a group or of everybody. Host names are looked up by
/// the system, which takes its own time.
Result<std::string> own_address(const std::string& host);

}  // namespace sluice::transport
