// SPDX-License-Identifier: MIT
#include "transport/own_address.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/descriptor.hpp"

namespace sluice::transport {
namespace {

Status unusable(const std::string& why) {
  return {StatusCode::invalid_argument, why};
}

bool names_one(const addrinfo& entry) noexcept {
  if (entry.ai_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, entry.ai_addr, sizeof(address));
    const std::uint32_t number = ntohl(address.sin_addr.s_addr);
    return number != INADDR_ANY && number != INADDR_BROADCAST && !IN_MULTICAST(number);
  }
  if (entry.ai_family != AF_INET6) return false;
  sockaddr_in6 address;
  std::memcpy(&address, entry.ai_addr, sizeof(address));
  return !IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr) && !IN6_IS_ADDR_MULTICAST(&address.sin6_addr);
}

// Whether somebody could listen there; the reason otherwise.
Status try_out(const addrinfo& entry) {
  if (!names_one(entry)) return unusable("it is not the address of one interface");
  const base::Descriptor socket(::socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open() || ::bind(socket.number(), entry.ai_addr, entry.ai_addrlen) != 0) {
    return unusable(std::strerror(errno));
  }
  return {};
}

}  // namespace

Result<std::string> own_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return unusable(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  Status first;
  std::string near;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Status status = try_out(*entry);
    std::array<char, NI_MAXHOST> numbers{};
    if (status.ok() && ::getnameinfo(entry->ai_addr, entry->ai_addrlen, numbers.data(),
                                     numbers.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      // A name of this machine's own often stands for another one first (Debian: 127.0.1.1).
      const std::string_view found(numbers.data());
      if (!is_loopback(found) && !is_link_local(found)) return std::string(found);
      if (near.empty()) near = found;
    }
    if (first.ok() && !status.ok()) first = status;
  }
  if (!near.empty()) return near;
  return first.ok() ? unusable("it has no address") : first;
}

bool is_loopback(std::string_view numbers) noexcept {
  return numbers.starts_with("127.") || numbers == "::1" || numbers.starts_with("::ffff:127.");
}

bool is_link_local(std::string_view numbers) noexcept {
  return numbers.starts_with("169.254.") || numbers.starts_with("fe80:");
}

}  // namespace sluice::transport
