// SPDX-License-Identifier: MIT
#include "store/socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/system_error.hpp"

namespace sluice::store {
namespace {

using base::Deadline;
using base::Descriptor;
using base::system_status;

// One address of several may be one that nothing comes back from, or a packet was lost before anybody
// listened: then the next attempt is sooner than the system's own.
constexpr std::chrono::seconds kAttempt{2};
constexpr std::chrono::milliseconds kPartsPause{10};
constexpr std::chrono::seconds kQuiet{60};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress abstract_address(const std::string& name) {
  SocketAddress result;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  std::memcpy(&result.storage, &address, sizeof(address));
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

Result<std::vector<SocketAddress>> resolve(const Address& address, bool to_listen) {
  if (address.kind == Address::Kind::unix_abstract) {
    return std::vector<SocketAddress>{abstract_address(address.name)};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  const int system_error = errno;
  if (error != 0) {
    const std::string what = "cannot resolve host \"" + address.host + "\"";
    if (error == EAI_SYSTEM) return system_status(system_error, what);
    // Of a machine that has yet to be started the name may not be known yet.
    bool later = error == EAI_AGAIN || (error == EAI_NONAME && !to_listen);
#ifdef EAI_NODATA
    later = later || (error == EAI_NODATA && !to_listen);
#endif
    const StatusCode code = error == EAI_MEMORY ? StatusCode::out_of_memory
                            : later             ? StatusCode::unavailable
                                                : StatusCode::invalid_argument;
    return Status(code, what + ": " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress one;
    if (entry->ai_addrlen > sizeof(one.storage)) continue;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    one.length = entry->ai_addrlen;
    addresses.push_back(one);
  }
  return addresses;
}

Descriptor new_socket(const SocketAddress& address) {
  return Descriptor::of_this_process([&] {
    return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  });
}

// Requests and replies are small and alternate: waiting to fill a segment only costs time. And where nothing is said for long, what
// is between two hosts (a firewall, a translation of addresses) may forget the connection. Unix sockets refuse, and need, none of it.
void set_up(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto idle = static_cast<int>(kQuiet.count());
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(socket.number(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

// The error of one attempt, 0 when connected.
int connect_error(const Descriptor& socket, const SocketAddress& address, Deadline deadline) {
  while (::connect(socket.number(), address.get(), address.length) != 0) {
    // A unix listener whose queue is full: it is there, and poll() cannot tell when there is room.
    if (errno == EAGAIN && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (errno == EINPROGRESS || errno == EINTR) break;
    return errno == EAGAIN ? ETIMEDOUT : errno;
  }
  pollfd entry{socket.number(), POLLOUT, 0};
  if (poll_until({&entry, 1}, deadline) == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

// A client that retries a free local port may be given that very port as its own and meet itself.
bool is_connected_to_itself(const Descriptor& socket) {
  SocketAddress own;
  SocketAddress other;
  own.length = sizeof(own.storage);
  other.length = sizeof(other.storage);
  const auto data = [](SocketAddress& address) {
    return reinterpret_cast<sockaddr*>(&address.storage);
  };
  return ::getsockname(socket.number(), data(own), &own.length) == 0 &&
         ::getpeername(socket.number(), data(other), &other.length) == 0 &&
         own.length == other.length && std::memcmp(&own.storage, &other.storage, own.length) == 0;
}

Status deadline_status(const std::string& what, std::size_t done, std::size_t wanted) {
  return Status(StatusCode::deadline_exceeded, what + ": the deadline passed after " +
                                                   std::to_string(done) + " of " +
                                                   std::to_string(wanted) + " bytes");
}

}  // namespace

namespace {

// More entries than the process may have descriptors are refused, as when it has lowered its limit since it
// opened them: then by as many as it may have at a time.
int poll_in_parts(std::span<pollfd> entries) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t part = std::max<std::size_t>(limit.rlim_cur, 1);
  int ready = 0;
  for (std::size_t at = 0; at < entries.size(); at += part) {
    const auto some = entries.subspan(at, std::min(part, entries.size() - at));
    const timespec none{};
    ready += std::max(::ppoll(some.data(), some.size(), &none, nullptr), 0);
  }
  if (ready == 0) std::this_thread::sleep_for(kPartsPause);
  return ready;
}

}  // namespace

int poll_until(std::span<pollfd> entries, Deadline deadline) {
  for (;;) {
    const std::int64_t left = deadline.remaining_ns();
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(left % 1'000'000'000);
    const int ready =
        ::ppoll(entries.data(), entries.size(), deadline.is_never() ? nullptr : &timeout, nullptr);
    if (ready > 0) return ready;
    if (ready < 0 && errno == EINVAL) {
      if (const int some = poll_in_parts(entries); some > 0) return some;
    }
    // EINTR is a signal, ENOMEM passes; nothing else can happen with valid entries.
    if (deadline.expired()) return 0;
  }
}

bool is_loopback(std::string_view address) noexcept {
  sa_family_t family = AF_UNSPEC;
  if (address.size() < sizeof(family)) return false;
  std::memcpy(&family, address.data(), sizeof(family));
  if (family == AF_INET && address.size() >= sizeof(sockaddr_in)) {
    sockaddr_in four;
    std::memcpy(&four, address.data(), sizeof(four));
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  if (family != AF_INET6 || address.size() < sizeof(sockaddr_in6)) return false;
  sockaddr_in6 six;
  std::memcpy(&six, address.data(), sizeof(six));
  return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
         (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == 127);
}

bool is_only_here(const std::string& host) {
  in6_addr number{};
  if (::inet_pton(AF_INET, host.c_str(), &number) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), &number) == 1 ||
      host.find("localhost") != std::string::npos) {
    return false;
  }
  const auto addresses = resolve({Address::Kind::tcp, host, 0, {}}, false);
  return addresses.ok() && std::ranges::all_of(*addresses, [](const SocketAddress& one) {
           return is_loopback({reinterpret_cast<const char*>(&one.storage), one.length});
         });
}

Result<Descriptor> listen_at(const Address& address) {
  auto addresses = resolve(address, true);
  if (!addresses.ok()) return addresses.status();
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& one : *addresses) {
    Descriptor socket = new_socket(one);
    if (!socket.open()) {
      error = errno;
      continue;
    }
    const int on = 1;
    if (address.kind == Address::Kind::tcp) {
      ::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (::bind(socket.number(), one.get(), one.length) == 0 &&
        ::listen(socket.number(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
  }
  return system_status(error, "cannot listen at " + to_string(address));
}

Result<std::uint16_t> bound_port(const Descriptor& listener) {
  const auto address = local_address(listener);
  if (!address.ok()) return address.status();
  return address->port;
}

Result<Address> local_address(const Descriptor& socket) {
  SocketAddress own;
  own.length = sizeof(own.storage);
  if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0) {
    return system_status(errno, "cannot read the address of a socket");
  }
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int error = ::getnameinfo(own.get(), own.length, host.data(), host.size(), port.data(),
                                  port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) {
    return Status(StatusCode::io_error,
                  std::string("cannot read the address of a socket: ") + ::gai_strerror(error));
  }
  Address address;
  address.host = host.data();
  address.port = static_cast<std::uint16_t>(std::atoi(port.data()));
  return address;
}

Result<Descriptor> connect_to(const Address& address, Deadline deadline) {
  auto addresses = resolve(address, false);
  if (!addresses.ok()) return addresses.status();
  Status failure;
  for (const SocketAddress& one : *addresses) {
    Descriptor socket = new_socket(one);
    int error = socket.open() ? 0 : errno;
    if (error == 0) {
      const Deadline attempt = Deadline::after(kAttempt);
      const bool sooner = address.kind == Address::Kind::tcp &&
                          (deadline.is_never() || attempt.at_ns() < deadline.at_ns());
      error = connect_error(socket, one, sooner ? attempt : deadline);
    }
    if (error == 0 && address.kind == Address::Kind::tcp && is_connected_to_itself(socket)) {
      error = ECONNREFUSED;
    }
    if (error == 0) {
      set_up(socket);
      return socket;
    }
    // At one of them somebody may listen later, whatever is wrong with others: IPv6's, where there is none.
    if (failure.code() == StatusCode::unavailable) continue;
    const std::string what = "cannot connect to " + to_string(address);
    failure = error == ETIMEDOUT
                  ? Status(StatusCode::unavailable, what + ": " + base::error_text(error))
                  : system_status(error, what);
  }
  return failure.ok() ? system_status(ECONNREFUSED, "cannot connect to " + to_string(address))
                      : failure;
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor socket = Descriptor::of_this_process(
      [&] { return ::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (socket.open()) {
    set_up(socket);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    static std::atomic<bool> said{false};
    const int error = errno;
    if (!said.exchange(true, std::memory_order_relaxed)) {
      base::log_warn("another rank waits, but its connection cannot be taken: {}",
                     base::error_text(error));
    }
    errno = error;
  }
  return socket;
}

Status send_all(const Descriptor& socket, std::string_view bytes, Deadline deadline,
                const std::string& what) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent =
        ::send(socket.number(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      pollfd entry{socket.number(), POLLOUT, 0};
      if (poll_until({&entry, 1}, deadline) == 0) {
        return deadline_status(what, done, bytes.size());
      }
    } else if (errno != EINTR) {
      return system_status(errno, what);
    }
  }
  return {};
}

Status receive_all(const Descriptor& socket, std::span<char> bytes, Deadline deadline,
                   const std::string& what) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::recv(socket.number(), bytes.data() + done, bytes.size() - done, 0);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return Status(StatusCode::unavailable, what + ": the other end closed the connection");
    } else if (errno == EAGAIN) {
      pollfd entry{socket.number(), POLLIN, 0};
      if (poll_until({&entry, 1}, deadline) == 0) {
        return deadline_status(what, done, bytes.size());
      }
    } else if (errno != EINTR) {
      return system_status(errno, what);
    }
  }
  return {};
}

Result<PeerCredentials> peer_credentials(const Descriptor& socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return system_status(errno, "cannot read the credentials of a peer");
  }
  return PeerCredentials{credentials.pid, credentials.uid == ::geteuid()};
}

Result<std::string> random_name() {
  std::array<unsigned char, 16> bytes{};
  if (Status status = base::fill_random(std::as_writable_bytes(std::span(bytes))); !status.ok()) {
    return status;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name;
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4U];
    name += kDigits[byte & 15U];
  }
  return name;
}

}  // namespace sluice::store
