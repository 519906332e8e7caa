// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::store {

/// Longest name of an abstract socket that every kernel takes, with room to spare.
inline constexpr std::size_t kUnixNameBytesMax = 100;

/// Where a store is served.
struct Address {
  enum class Kind : std::uint8_t { tcp, unix_abstract };
  Kind kind = Kind::tcp;
  std::string host;        // tcp: a name or an address; without the brackets of IPv6.
  std::uint16_t port = 0;  // tcp
  std::string name;        // unix_abstract: without the leading zero byte.
};

/// "tcp:host:port", "tcp:[::1]:port" or "unix:name".
Result<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);

}  // namespace sluice::store
