// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bare_way.hpp"
#include "board.hpp"
#include "case.hpp"
#include "contestant.hpp"
#include "network_numbers.hpp"
#include "place.hpp"
#include "progress.hpp"
#include "raw_network.hpp"
#include "sluice/world.hpp"

namespace sluice::bench {

/// Measures what lies between nodes: the bytes that operations put there, and what the network does
/// with puts alone. All calls are collective; numbers go to the board.
class NetworkMeter {
 public:
  /// `place` must outlive it.
  static Result<std::unique_ptr<NetworkMeter>> open(World& world, const Case& bench_case,
                                                    Place& place);

  /// Runs dispatch and combine, one by one, and sees what the network has of them: bytes, of every data set
  /// once, and times.
  Status watch(Board& board, Contestant& contestant, Progress& progress);
  /// Times the rounds [first, end) of the raw network. After watch.
  Status measure(Board& board, int first, int end, Progress& progress);

  const transport::Traits& traits() const noexcept { return raw_->traits(); }
  std::uint64_t chunk_bytes() const noexcept { return raw_->chunk_bytes(); }
  const routing::NodeMap& nodes() const noexcept { return raw_->nodes(); }
  /// Of the stream, to one rail peer.
  std::uint64_t stream_bytes() const noexcept {
    return std::max(chunk_bytes(), std::min(kStreamChunks * chunk_bytes(), kStreamBytesMax));
  }
  /// A dispatched row with its scales.
  std::uint64_t record_bytes() const noexcept { return record_bytes_; }
  /// By rank, as each sees it: its host name, and how many network namespaces there are.
  const std::vector<std::string>& hosts() const noexcept { return hosts_; }
  int network_namespaces() const noexcept { return network_namespaces_; }
  /// Whether what goes to other nodes is staged in memory of the host.
  bool staged() const noexcept { return staging_ != nullptr; }

 private:
  static constexpr std::uint64_t kStreamChunks = 16;
  static constexpr std::uint64_t kStreamBytesMax = std::uint64_t{1} << 28;

  NetworkMeter(bootstrap::Group& group, std::unique_ptr<RawNetwork> raw, const Case& bench_case,
               Place& place);
  Status look_around(World& world);
  Status watch_one(Board& board, Contestant& contestant, int operation, int turn);
  /// What `from` puts to every rank.
  std::vector<std::uint64_t> bytes_of(const NetworkNumbers& numbers, int from,
                                      RawSeries series) const;
  /// Brings what is still under way to its end, on all ranks.
  Status finish(Board& board);
  Status time_exchange(Board& board, RawSeries series, int round);
  Status exchange(Board& board, RawSeries series, int round);
  Status time_one_way(Board& board, RawSeries series, std::uint64_t bytes, int round);
  Status time_staging(Board& board, int round);
  BarePlan bare_plan(const NetworkNumbers& numbers, int rank, int operation, int pieces) const;
  Status open_bare_way(const Board& board);
  Status time_bare_way(Board& board, int round);

  bootstrap::Group& group_;
  Place& place_;
  std::unique_ptr<RawNetwork> raw_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<BareWay> bare_way_;
  struct BareCase {
    RawSeries series;
    BarePlan plan;
  };
  std::vector<BareCase> bare_cases_;
  const Case& case_;
  std::uint64_t record_bytes_;
  std::vector<std::string> hosts_;
  int network_namespaces_ = 0;
};

}  // namespace sluice::bench
