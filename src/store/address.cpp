// SPDX-License-Identifier: MIT
#include "store/address.hpp"

#include <charconv>

namespace sluice::store {
namespace {

Status bad_address(std::string_view text, const char* why) {
  return Status(
      StatusCode::invalid_argument,
      "rendezvous \"" + std::string(text) + "\": " + why +
          ", expected tcp:host:port, tcp:[IPv6 address]:port, one of these with /name, or "
          "unix:name");
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

Result<Address> parse_address(std::string_view text) {
  Address address;
  if (starts_with(text, "unix:")) {
    address.kind = Address::Kind::unix_abstract;
    address.name = text.substr(5);
    if (address.name.empty()) return bad_address(text, "the name is empty");
    if (address.name.size() > kNameBytesMax) {
      return bad_address(text, "the name is longer than 100 bytes");
    }
    return address;
  }
  if (!starts_with(text, "tcp:")) return bad_address(text, "neither tcp: nor unix:");
  std::string_view place = text.substr(4);
  if (const std::size_t slash = place.find('/'); slash != std::string_view::npos) {
    address.name = place.substr(slash + 1);
    place = place.substr(0, slash);
    if (address.name.empty()) return bad_address(text, "the name is empty");
    if (address.name.size() > kNameBytesMax) {
      return bad_address(text, "the name is longer than 100 bytes");
    }
  }
  const std::size_t colon = place.rfind(':');
  if (colon == std::string_view::npos) return bad_address(text, "no port");
  std::string_view host = place.substr(0, colon);
  if (starts_with(host, "[")) {
    if (host.back() != ']') return bad_address(text, "no ] after the IPv6 address");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad_address(text, "an IPv6 address without brackets");
  }
  if (host.empty()) return bad_address(text, "the host is empty");
  address.host = host;
  const std::string_view port = place.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0) {
    return bad_address(text, "the port is no number from 1 to 65535");
  }
  return address;
}

std::string to_string(const Address& address) {
  if (address.kind == Address::Kind::unix_abstract) return "unix:" + address.name;
  const bool bracketed = address.host.find(':') != std::string::npos;
  return "tcp:" + (bracketed ? "[" + address.host + "]" : address.host) + ":" +
         std::to_string(address.port) + (address.name.empty() ? "" : "/" + address.name);
}

}  // namespace sluice::store
