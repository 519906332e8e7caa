// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contestant.hpp"
#include "mpi_peer.hpp"

namespace sluice::bench {

/// What the peer's way costs at least: its exchanges, its copies and its quantising, each alone, on
/// the peer's own buffers. A peer that takes much longer than these together is badly made, and a
/// comparison with it says nothing.
class PeerFloor final : public Contestant {
 public:
  /// `peer` outlives it.
  explicit PeerFloor(MpiPeer& peer);

  std::string name() const override { return "peer's floor"; }
  Role role() const override { return Role::floor; }
  std::vector<std::string> operations() const override;
  Status run(int operation, int set) override;
  Result<std::int64_t> check(int) override { return std::int64_t{0}; }

 private:
  struct Counts {
    std::vector<int> sent, sent_first, received, received_first;
  };

  Status exchange(int set, bool out);
  void copy(int set);
  void quantise(int set);

  MpiPeer& peer_;
  std::vector<Counts> counts_;  // [sets]
};

}  // namespace sluice::bench
