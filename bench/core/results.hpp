// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "case.hpp"
#include "gemm_result.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "network_result.hpp"
#include "summary.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// One contestant that dispatches and combines. Bytes are those of one pair, over all ranks.
struct ContestantResult {
  std::string name;
  Role role = Role::ours;
  std::string way;    ///< See Contestant.
  std::string about;  ///< See Contestant.
  Summary dispatch_us, combine_us, pair_us;
  std::optional<Summary> single_us;         ///< Pairs timed one by one.
  std::optional<Summary> combine_alone_us;  ///< Graphs of combines alone.
  double dispatch_wire_bytes = 0.0, combine_wire_bytes = 0.0;
  double dispatch_naive_bytes = 0.0, combine_naive_bytes = 0.0;
  std::int64_t wrong = 0;

  double wire_bytes() const noexcept { return dispatch_wire_bytes + combine_wire_bytes; }
  double naive_bytes() const noexcept { return dispatch_naive_bytes + combine_naive_bytes; }
};

/// A part of the work alone, which no implementation of the usual way can avoid.
struct FloorPart {
  std::string name;
  Summary us;
};

/// Medians of the peer over ours, both in one way.
struct Ratio {
  std::string way;
  double dispatch = 0.0, combine = 0.0, pair = 0.0;
};

struct Results {
  Machine machine;
  Case bench_case;
  std::string command;
  bool checked = false;
  std::vector<ContestantResult> contestants;
  std::vector<FloorPart> floor;  ///< Only with the MPI peer.
  /// The peer against ours, in every way of both; none without a peer, or when it is void.
  std::vector<Ratio> ratios;
  /// rank_major: against the peer that sends one row per (token, rank).
  std::optional<Ratio> ratio_per_rank;
  std::string void_reason;
  std::optional<GemmResult> gemm;
  std::optional<NetworkResult> network;  ///< On several nodes.

  /// The first of that role, in that way where one is given.
  const ContestantResult* find(Role role) const noexcept;
  const ContestantResult* find(Role role, const std::string& way) const noexcept;
  double floor_us() const noexcept;
  std::int64_t wrong() const noexcept;
  /// 0: all right; 1: wrong values; 3: void comparison.
  int exit_status() const noexcept;
};

/// A peer slower than this many times its own floor is not worth a comparison.
inline constexpr double kPeerLimit = 1.5;

/// Sets the ratios, or the reason why the comparison with the peer is void.
void judge_peer(Results& results);

/// Collects from the board what all ranks have left there. `network`: on several nodes.
Results collect(const Board& board, const Workload& workload, const Contestants& contestants,
                bool checked, const NetworkMeter* network = nullptr);

void print_table(const Results& results, std::FILE* out);
std::string to_json(const Results& results);
std::string to_csv(const Results& results);
/// Every sample: "name,operation,rank,iteration,us".
std::string samples_csv(const Board& board, const Contestants& contestants, bool combines);

}  // namespace sluice::bench
