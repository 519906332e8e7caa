// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Which network cards (NICs) a rank uses, where its node has several.
namespace sluice::transport {

/// One that a provider offers.
struct Nic {
  std::string name;         // libfabric's, of its domain: "mlx5_0", "rdmap16s27-rdm", "eth0".
  std::string path = {};    // bus_path() of it; empty: not known.
  std::uint64_t speed = 0;  // In bit/s; 0: not known.
  bool reachable =
      true;  // By others, as far as can be told: its link is up, and its address not this machine's own.
};

/// Who chooses.
struct NicWishes {
  std::vector<std::string> names = {};  // These, and no others. Empty: whatever there is.
  bool one = false;       // Where no names are given, the first that is reachable, and no other.
  std::string near = {};  // bus_path() of what it is to be near to: the GPU; empty: nothing.
  std::vector<std::string> before = {};  // `near` of the node's ranks that choose before this one.
  int rails = 1;
};

/// By rail, which of `nics`; empty: not all that are named are there, or there is none.
///
/// Of those that are reachable (all, where none is), the fastest, if the speeds of all are known; of these, the nearest. Ranks that
/// choose from the same ones, and their rails, take one after the other, and begin again after the last.
std::vector<std::size_t> choose_nics(std::span<const Nic> nics, const NicWishes& wishes);

/// With what the provider did not say of it, and the system knows: those of InfiniBand and RoCE (`sysfs`: /sys/class/infiniband).
/// libfabric before 2.0 knows no speed of cards from HDR on, and verbs before 2.3.1 not where a card is.
Nic completed(Nic nic, const std::string& sysfs = "/sys/class/infiniband");

/// Where a device is on the bus: its folder in sysfs, without links, whose parts are the bridges on the way to it.
/// `address`: of PCI, as "0000:1b:00.0". Empty: not known.
std::string bus_path(std::string_view address);

}  // namespace sluice::transport
