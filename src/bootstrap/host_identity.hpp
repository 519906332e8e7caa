// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// Where a rank runs. Ranks with equal `node` can meet at abstract sockets; ranks with equal
/// `process_space` can name each other's processes.
struct HostIdentity {
  std::string machine;        // Its boot.
  std::string node;           // That, the network namespace, SLUICE_NODE.
  std::string process_space;  // The process id namespace; empty where it cannot be read.
  std::int32_t process = 0;
};
Result<HostIdentity> this_host();
std::string host_name();
/// Of a HostIdentity::node, what it shares with those that have the same loopback interface.
std::string_view network_of_node(std::string_view node);
/// The address, in numbers, from which this machine's routes lead to others; 127.0.0.1 if they lead nowhere.
std::string routed_address();

/// A descriptor that becomes readable when the process ends. Closed where the kernel has no such
/// thing; `unavailable` when there is no such process any more.
Result<base::Descriptor> watch_process(std::int32_t process);

}  // namespace sluice::bootstrap
