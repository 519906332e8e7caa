// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>

#include "base/deadline.hpp"
#include "relay/opening.hpp"
#include "relay/site.hpp"
#include "relay/traffic.hpp"
#include "sluice/communicator.hpp"

namespace sluice::relay {

/// One rank's progress thread (docs/relay.md). The engine of this rank, and those of its node, meet it
/// in their windows: see RelayLayout.
///
/// The destructor does not wait: the thread goes on, for a while, as long as peers need what this rank
/// has sent or passes on.
class Relay {
 public:
  /// Collective.
  static Result<std::unique_ptr<Relay>> start(bootstrap::Group& group, Opening opening, Site site,
                                              MakeTraffic make_traffic, base::Deadline deadline);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const Site& site() const noexcept;
  /// What the engine has written for other nodes in this operation is all there.
  void publish(protocol::CellKind kind, std::uint64_t epoch) noexcept;
  /// Whether nothing of the operation is still to be read from this rank's memory by the network.
  bool flushed(protocol::Kind kind, std::uint64_t epoch) const noexcept;
  /// After so long a silence a rank of another node is given up.
  std::chrono::nanoseconds patience() const noexcept;
  /// Fills in what is said there of the network.
  void read(Statistics& statistics) const;
  /// The engine has told its peers something.
  void wake() noexcept;

  struct Thread;

 private:
  explicit Relay(std::list<std::unique_ptr<Thread>> thread);
  Thread& thread() const noexcept;

  std::list<std::unique_ptr<Thread>> thread_;  // One, which may outlive this.
};

}  // namespace sluice::relay
