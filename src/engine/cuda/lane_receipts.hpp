// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/cuda/ferry_launcher.hpp"
#include "engine/cuda/lane_view.hpp"
#include "protocol/epochs.hpp"
#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::engine::cuda {

/// What has been read, from this rank's kernels to other nodes and from there to the kernels; and which operations are still
/// under way. Why each of them may be told: see LaneTraffic.
class LaneReceipts {
 public:
  /// An operation of a source whose last items are on their way.
  struct Ending {
    int source;
    protocol::Kind kind;
    std::uint64_t epoch;
    std::uint64_t items;  // Of the ferry, counted from its first.
    bool sums;            // Of those it is still to be said that all have come.
  };

  LaneReceipts(const relay::Site& site, const relay::Postings& postings, const LaneView& view,
               Ferry& ferry);

  void end(const Ending& ending) { endings_.push_back(ending); }
  /// The last operation of each kind whose messages have all been posted.
  using Posted = std::array<std::uint64_t, protocol::kKinds>;
  /// Tells what is new; whether anything was.
  bool step(const Posted& posted);
  /// The last operation of the kind of which all that is to come over the network has been carried to where it is read.
  std::uint64_t carried(protocol::Kind kind) const noexcept {
    return carried_[static_cast<std::size_t>(kind)];
  }

 private:
  using OfKinds = Posted;

  bool note_endings();
  void count_complete(int source, protocol::Kind kind);
  bool tell_kernels(int source, protocol::Kind kind, std::uint64_t posted);
  bool tell_peers(protocol::Kind kind);
  bool tell_flushed();

  const relay::Site& site_;
  const relay::Postings& postings_;
  const LaneView& view_;
  Ferry& ferry_;
  std::deque<Ending> endings_;
  /// By source and kind: operations that have ended before an earlier one has; and the last before which all have.
  std::vector<std::array<std::vector<std::uint64_t>, protocol::kKinds>> ended_;
  std::vector<OfKinds> complete_;
  std::vector<OfKinds> told_;  // to the kernels
  OfKinds carried_{};
  std::uint64_t told_flushed_ = 0;
};

}  // namespace sluice::engine::cuda
