// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "bare_plan.hpp"
#include "board.hpp"
#include "bootstrap/group.hpp"
#include "place.hpp"
#include "transport/transport.hpp"

namespace sluice::bench {

/// What the least that does an operation's work across nodes would take: its bytes, and no more, from GPU to GPU by pinned memory of
/// their hosts and an endpoint as a communicator has one. One kernel an operation writes them out and reads in what has come; the
/// thread that calls time() puts and polls. All ranks do it at once, one operation after the other.
class BareWay {
 public:
  /// Collective. The place, and the group, must outlive it. `bytes`: the most of an operation's, out and in.
  static Result<std::unique_ptr<BareWay>> open(bootstrap::Group& group, Place& place,
                                               std::uint64_t out_bytes, std::uint64_t in_bytes,
                                               double deadline_s);

  /// Microseconds of one of so many operations, of which a few untimed ones go before. Collective, behind a common start.
  /// The plan: of Shuttle::kPiecesMax pieces at most, out and in. `internal`: what came was not what was sent.
  Result<double> time(Board& board, const BarePlan& plan, int operations);

 private:
  /// What has come of one operation. The next one's may come before the last of this one, and no other.
  struct Come {
    std::uint64_t operation = 0;
    int pieces = 0;
  };

  BareWay(bootstrap::Group& group, std::unique_ptr<Shuttle> shuttle, double deadline_s);
  Status carry(const BarePlan& plan, std::uint64_t first, std::uint64_t last);
  /// Puts what is out of an operation; whether all is put.
  Result<bool> put(const BarePlan& plan, std::uint64_t operation);
  Status poll(const BarePlan& plan);
  Status check(const BarePlan& plan);

  bootstrap::Group& group_;
  std::unique_ptr<Shuttle> shuttle_;  // Has the endpoint's memory: destroyed after it.
  std::unique_ptr<transport::Endpoint> endpoint_;
  double deadline_s_;
  std::array<Come, 2> come_;       // By the operation's lowest bit.
  std::size_t put_ = 0;            // Pieces of the operation that is put.
  std::int64_t on_their_way_ = 0;  // Own pieces whose memory is still read.
};

}  // namespace sluice::bench
