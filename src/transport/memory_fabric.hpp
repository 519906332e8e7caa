// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace sluice::transport {

/// How a MemoryFabric behaves. Probabilities are in 1/1024, for every single decision.
struct Adversity {
  std::uint64_t seed = 1;
  int reorder = 1024;  ///< What arrives next is any chunk on its way, not the oldest.
  int delay = 256;     ///< A poll brings nothing, though there is something.
  int refusal = 128;   ///< A put is told to come later.
  int late_read =
      512;  ///< A chunk's memory is read when it arrives or is said to be sent, not before.
  int window = 64;
  std::size_t put_bytes_max = std::size_t{1} << 20;
  std::size_t pieces_max = 1;
  bool device_memory = false;  ///< Takes memory of GPUs: what a provider does that reaches it.
};

/// Endpoints within one process between which a chunk arrives when, and in what order, the worst
/// network that keeps the contract might choose: for tests. With one thread, what it does follows
/// from the seed and the order of calls.
class MemoryFabric {
 public:
  MemoryFabric(int ranks, const Adversity& adversity);
  ~MemoryFabric();
  MemoryFabric(const MemoryFabric&) = delete;
  MemoryFabric& operator=(const MemoryFabric&) = delete;

  /// Once for each rank. Outlived by the fabric or not, as it comes.
  std::unique_ptr<Endpoint> endpoint(int rank);
  /// From now on nothing arrives at the rank, and of what it has sent some may still arrive, or
  /// nothing. `told`: its peers get a `lost` event, sooner or later.
  void cut_off(int rank, bool told);

 private:
  class Network;
  class Port;
  std::shared_ptr<Network> network_;
};

}  // namespace sluice::transport
