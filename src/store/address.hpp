// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::store {

/// Longest name of an abstract socket that every kernel takes, with room to spare. Of others, too.
inline constexpr std::size_t kNameBytesMax = 100;

/// Where a store is served.
struct Address {
  enum class Kind : std::uint8_t { tcp, unix_abstract };
  Kind kind = Kind::tcp;
  std::string host;        // tcp: a name or an address; without the brackets of IPv6.
  std::uint16_t port = 0;  // tcp
  /// unix_abstract: without the leading zero byte. tcp: of who meets there, which strangers do not know; or empty.
  std::string name;
};

/// "tcp:host:port", "tcp:[::1]:port", one of these with "/name" behind it, or "unix:name".
Result<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);

}  // namespace sluice::store
