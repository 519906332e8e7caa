// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "board.hpp"
#include "network_meter.hpp"
#include "summary.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// What is allowed for each way beside what grows with the bytes: a row of 7168 B took as long (12.8 to 13.2 us)
/// from one GPU to another by two host memories and libfabric over loopback, without Sluice (2 x H200, driver 580).
inline constexpr double kStagedWayUs = 13.0;

/// Bytes between nodes, or their speed, where most of them go in or out.
struct NetworkOperation {
  double bytes = 0.0;               ///< Over all ranks.
  double busiest_node_bytes = 0.0;  ///< Into one node, or out of it.
  double naive_bytes = 0.0;         ///< Of one row for each route to another node.
  double us = 0.0;                  ///< Median of the whole operation.
  double puts_us = 0.0;             ///< Median of raw puts of as many bytes.
  double network_us = 0.0;          ///< Median from the first put to the last arrival.
  double one_ways = 1.0;            ///< Times that it has to cross the network.
  double staged_out_bytes = 0.0;    ///< Of one rank: what it puts, and what is put to it.
  double staged_in_bytes = 0.0;
  /// With GPUs: the least median of the bare way (BareWay), and in how many pieces to each rank it is; 0: more than it takes.
  double bare_us = 0.0;
  int bare_pieces = 0;

  /// On the busiest node, if its bytes take so long; bytes per microsecond are megabytes per second.
  double gigabytes_per_second(double in_us) const noexcept {
    return in_us > 0.0 ? busiest_node_bytes / in_us * 1e-3 : 0.0;
  }
  /// By the time of the whole operation.
  double gigabytes_per_second() const noexcept { return gigabytes_per_second(us); }
};

struct NetworkResult {
  std::string provider, signals;
  int rails = 0;
  std::uint64_t chunk_bytes = 0, stream_bytes = 0, record_bytes = 0;
  int rounds = 0;
  std::vector<std::string> hosts;  ///< By rank.
  int network_namespaces = 0;
  bool staged = false;                         ///< What crosses the network lies on the host then.
  NetworkOperation stream;                     ///< Raw puts of long pieces.
  std::array<Summary, kRawSeries> raw_us;      ///< By RawSeries.
  std::array<NetworkOperation, 3> operations;  ///< By kDispatch, kCombine, kPair.

  /// `operation_us`: medians of kDispatch, kCombine, kPair.
  static NetworkResult of(const Board& board, const Workload& workload, const NetworkMeter& meter,
                          const std::array<double, 3>& operation_us);

  const Summary& raw(RawSeries series) const noexcept {
    return raw_us[static_cast<std::size_t>(series)];
  }
  /// What the whole operation, or its time on the network alone, reaches of the bandwidth of raw puts.
  double share_of_stream(int operation) const noexcept;
  double network_share_of_stream(int operation) const noexcept;
  /// The latter of what raw puts reach beside copies.
  double network_share_of_busy_stream(int operation) const noexcept;
  /// How often raw puts of its bytes fit into its time, and how often one record's way.
  double times_puts(int operation) const noexcept;
  double times_one_way(int operation) const noexcept;
  /// Where everything is staged: what an operation is measured by (docs/benchmarking.md), in us.
  double staged_floor_us(int operation) const noexcept;
  double times_staged_floor(int operation) const noexcept;
  double times_bare_way(int operation) const noexcept;
};

}  // namespace sluice::bench
