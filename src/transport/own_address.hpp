// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::transport {

/// The numbers of an address at which this machine can be reached, given them or a host name: where it has several, of the
/// first that is neither loopback nor link-local, if there is one. invalid_argument, with the reason: it is none, as that of
/// another machine, of all interfaces, of a group or of everybody. Host names are looked up by the system, which takes its own
/// time.
Result<std::string> own_address(const std::string& host);

/// Of an address in numbers: it leads every machine to itself; or at most to those at the same cable.
bool is_loopback(std::string_view numbers) noexcept;
bool is_link_local(std::string_view numbers) noexcept;

}  // namespace sluice::transport
