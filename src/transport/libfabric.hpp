// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace sluice::transport {

/// How to open an endpoint of libfabric. Equal on all ranks, but for `address`, `nics` and what says where this rank is.
struct LibfabricSettings {
  /// Taken in this order, the first that is there. Empty: efa-direct, efa, cxi, verbs;ofi_rxm, tcp, net,
  /// tcp;ofi_rxm. ("net" of libfabric 1.17 is "tcp" of later ones.)
  std::vector<std::string> providers;
  /// Not given: the first of immediate, ordered, serial that the provider can do.
  std::optional<SignalMode> signals;
  /// Endpoints of this rank, over which its chunks go in turn. 1 to 8.
  int rails = 1;
  /// Host name or address of the interface to use. Empty: on TCP the first that is neither loopback nor
  /// link-local, if there is one; otherwise whatever `nics` says.
  std::string address;
  /// The network cards of which this rank's rails are, as libfabric calls their domains (mlx5_0, eth0). Empty: on TCP one, by
  /// `address`; otherwise all of the provider's. Of those, ranks of a node take the nearest, and different ones (choose_nics()).
  std::vector<std::string> nics;
  /// The PCI address of this rank's GPU ("0000:1b:00.0"; empty: none, or not known), and those of its node's ranks before it.
  std::string near;
  std::vector<std::string> near_before;
  /// Peers with the same one are reached at loopback addresses; empty: not known which are.
  std::string loopback_network;
  /// Traits::window. From kWindowMin on.
  int window = 256;
  static constexpr int kWindowMin = 4;
  static constexpr int kWindowMax = 65536;
  /// Whether a thread of its own receives (Receiver). Not given: on TCP, where the rank has kReceiverProcessors.
  std::optional<bool> receiver;
  static constexpr int kReceiverProcessors = 3;
  /// Of this rank's threads, as far as is known.
  int processors = 1;
  /// To reach memory of GPUs, where the provider does: Traits::device_memory says whether.
  bool device_memory = false;
};

/// The endpoint of `rank` of `ranks`, on reliable datagrams of libfabric (docs/transport.md).
/// libfabric itself is loaded now: `unavailable` if it is not installed or has none of the providers,
/// `unimplemented` if this build is without it.
Result<std::unique_ptr<Endpoint>> open_libfabric(int rank, int ranks,
                                                 const LibfabricSettings& settings);

}  // namespace sluice::transport
