// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "sluice/status.hpp"
#include "store/address.hpp"

/// Sockets with deadlines. Every socket made here is non-blocking, closed on exec, and nothing in a forked child.
namespace sluice::store {

/// poll() until something is ready or the deadline has passed: the number of ready entries, 0 for
/// the deadline. Signals do not end it.
int poll_until(std::span<pollfd> entries, base::Deadline deadline);

/// Whether a socket's address (a sockaddr_in or sockaddr_in6, in its bytes; of others: no) is a loopback interface's.
bool is_loopback(std::string_view address) noexcept;

/// Whether a host's name, and no word for every host's own ("localhost"), leads nowhere but to this host itself, as Debian's
/// /etc/hosts has it of the host's own (127.0.1.1): others know it by other addresses.
bool is_only_here(const std::string& host);

/// A listening socket at the first address of the host that can be bound. tcp: port 0 in `address`
/// takes a free one (see bound_port).
Result<base::Descriptor> listen_at(const Address& address);
Result<std::uint16_t> bound_port(const base::Descriptor& listener);
/// Where this end of a TCP socket is, in numbers.
Result<Address> local_address(const base::Descriptor& socket);

/// One attempt, of 2 seconds at most for each address of a host. `unavailable`: nobody listens (yet),
/// another attempt may do better.
Result<base::Descriptor> connect_to(const Address& address, base::Deadline deadline);

/// The next connection, or a closed descriptor if none is waiting, or there is no descriptor left for it:
/// which is said once, as a warning.
base::Descriptor accept_from(const base::Descriptor& listener);

/// Sends, or receives, exactly these bytes. A peer's end gives `unavailable`; `what` leads
/// messages.
Status send_all(const base::Descriptor& socket, std::string_view bytes, base::Deadline deadline,
                const std::string& what);
Status receive_all(const base::Descriptor& socket, std::span<char> bytes, base::Deadline deadline,
                   const std::string& what);

/// The process at the other end of a unix socket, as the kernel says.
struct PeerCredentials {
  int pid = 0;  // 0: not of this process id namespace.
  bool same_user = false;
};
Result<PeerCredentials> peer_credentials(const base::Descriptor& socket);

/// 128 random bits as 32 hexadecimal digits.
Result<std::string> random_name();

}  // namespace sluice::store
