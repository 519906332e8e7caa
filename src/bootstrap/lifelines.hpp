// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "bootstrap/introduction.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// One TCP connection to each of some ranks of other nodes, over which nothing is said: when a process ends the
/// system closes its end, and the other is told at once, where silence would take its time. A line that
/// ends is a hint and no proof: what lies between may end it, too.
class Lifelines {
 public:
  /// A rank with which this one wants a line, as it does with this one.
  struct Peer {
    int rank = 0;
    bool same_network = false;  // Reached at loopback addresses, too.
  };

  /// None.
  Lifelines() = default;
  /// Collective; `gather` is called once. `host`: the name or address of this machine by which they reach it. Does not fail for
  /// want of lines: with whom none comes to be within `longest`, as behind a firewall, there is none.
  static Result<Lifelines> tie(int rank, int size, const std::vector<Peer>& peers,
                               const std::string& host, const Gather& gather,
                               std::chrono::nanoseconds longest);

  /// Whether there was a line with this rank, which has ended without goodbye. Any thread may ask.
  bool cut(int peer) const noexcept;
  /// From now on the ends of this rank's lines mean nothing. Any number of times.
  void say_goodbye() const noexcept;

 private:
  std::vector<base::Descriptor> lines_;  // [size], or none at all; closed: there is none
};

}  // namespace sluice::bootstrap
