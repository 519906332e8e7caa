// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "board_bridge.hpp"
#include "sluice/status.hpp"

namespace sluice::bench {

/// The benchmark's own common start: the last rank to arrive notes the time and lets all go.
struct alignas(64) Gate {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> generation{0};  // Release store by the last; acquire loads by others.
  std::atomic<std::int64_t> start_ns{0};     // Ordered by generation.
  std::atomic<std::uint32_t> failed{0};      // 1 + the first rank that gave up.
};

/// What one rank leaves for the report, besides its samples.
struct RankRecord {
  static constexpr int kContestantsMax = 7;
  double dispatch_wire_bytes[kContestantsMax] = {};  ///< Mean of one operation.
  double combine_wire_bytes[kContestantsMax] = {};
  std::int64_t wrong[kContestantsMax] = {};
  char error[512] = {};
};

/// Zeroed memory that all ranks of the run share, one piece per rank: the gate, the samples and the
/// records. Any means of sharing will do; the board does not own the memory. Where nodes share none, each rank has a
/// copy of pieces of other nodes, and a bridge joins the boards.
class Board {
 public:
  /// What every rank has room for.
  struct Form {
    int series = 0;
    int iterations = 0;
    int singles = 0;
    int network = 0;  ///< Numbers about the network between nodes: see NetworkNumbers.

    /// Bytes that every rank contributes.
    std::size_t bytes() const noexcept;
  };

  /// `dead_peer` returns a rank known to have died, or -1; it is asked while waiting. `bridge`: null where all
  /// pieces are shared by all ranks.
  Board(std::vector<std::byte*> pieces, int rank, Form form, double deadline_s,
        std::function<int()> dead_peer, BoardBridge* bridge = nullptr);

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return static_cast<int>(pieces_.size()); }
  int iterations() const noexcept { return form_.iterations; }

  /// Waits for all ranks; the common start in nanoseconds of the steady clock. `meanwhile` is called over
  /// and over until they have come; without it the rank spins, so as to start when they do.
  Result<std::int64_t> pass(const std::function<void()>& meanwhile = {});
  /// Does nothing for a while: for ranks that are not to disturb what others measure.
  static void sleep();
  /// Tells the others that this rank gives up and why.
  void fail(const Status& status) noexcept;
  /// Collective: from here on everyone sees what all ranks have left by now.
  Status spread();

  /// One number per iteration of `rank` in `series`.
  std::span<double> samples(int rank, int series) const noexcept;
  /// One number per pair that was timed by itself.
  std::span<double> singles(int rank) const noexcept;
  std::span<double> network(int rank) const noexcept;
  RankRecord& record(int rank) const noexcept;

 private:
  struct Header {
    Gate gate;  // Only that of rank 0, or of a node's first rank, is used.
    RankRecord record;
  };

  Header& header(int rank) const noexcept;
  double* numbers(int rank) const noexcept;
  Gate& gate() const noexcept { return header(bridge_ != nullptr ? bridge_->leader() : 0).gate; }
  /// Until `done()`; `meanwhile` as in pass().
  template <typename Done>
  Status wait(const Done& done, const std::function<void()>& meanwhile) const;
  /// Whether there is a reason to wait no more.
  Status look_round(base::Deadline deadline) const;
  void let_go() const noexcept;
  Status cross(const std::function<void()>& meanwhile) const;
  Status failure() const;

  std::vector<std::byte*> pieces_;
  int rank_;
  Form form_;
  double deadline_s_;
  std::function<int()> dead_peer_;
  BoardBridge* bridge_;
  int spins_;
};

}  // namespace sluice::bench
