// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "reference/reference.hpp"
#include "sluice/communicator.hpp"
#include "support/findings.hpp"

/// One dispatch and one combine whose results are known whoever is missing: what an expert answers
/// depends on the source, the token and the expert alone, never on the row's number.
namespace sluice::faults {

struct Terms {
  int ranks = 4;
  Mode mode = Mode::latency;
  Layout layout = Layout::expert_slab;
  bool registered = false;  ///< x, and y of rank_major, in registered memory: peers read them.
};

Shape shape_of(const Terms& terms);
CommunicatorOptions options_of(const Terms& terms);
std::string name_of(const Terms& terms);

/// The inputs of all ranks. T, routing, weights and data change with the number.
struct Round {
  std::uint64_t seed = 0;
  reference::DispatchProblem problem;
};
Round make_round(const Terms& terms, int number);

/// Where a rank is within a round.
enum class Stage { dispatch_send, dispatch_receive, combine_send, combine_receive, end };

struct RoundOptions {
  std::optional<std::chrono::nanoseconds> dispatch_deadline;
  std::optional<std::chrono::nanoseconds> combine_deadline;
  std::function<void(Stage)> on_stage;  ///< Called before each half, and at the end.
  bool check = true;                    ///< Else only that every call returns.
};

struct RoundResult {
  RankSet dispatch_missing;
  RankSet combine_missing;
  std::chrono::nanoseconds longest_half{0};
};

/// One rank's inputs and outputs, reused by all rounds.
class Member {
 public:
  Member(const Terms& terms, Communicator& communicator, support::Findings& findings);

  /// Runs the round and compares rows, counts, reports, sums and surviving weights, bit for bit,
  /// with the reference for those peers that the reports name as missing.
  RoundResult run(const Round& round, const RoundOptions& options = {});

 private:
  /// That peers may read, if the terms say so.
  /// Where peers read an input, if terms say so; else its `own` memory.
  void* input(void* own, std::size_t bytes);
  /// `view` there, with what is in `own`.
  ConstTensorView given(const void* own, void* given, ConstTensorView view, std::size_t bytes);
  void* memory(std::size_t bytes);
  Received receive(const DispatchTicket& sent);
  ConstTensorView make_y(const Round& round, const reference::RankRows& rows);
  void check_received(const Received& received, const reference::Dispatched& view);
  void check_combined(const Round& round, const CombineResult& result);

  Terms terms_;
  Communicator& communicator_;
  support::Findings& findings_;
  std::vector<std::shared_ptr<void>> owned_;
  void* x_ = nullptr;
  void* y_ = nullptr;
  void* x_given_ = nullptr;
  void* y_given_ = nullptr;
  std::size_t y_bytes_ = 0;
  std::byte* out_ = nullptr;
  float* surviving_ = nullptr;
  std::int64_t* ids_ = nullptr;
  float* weights_ = nullptr;
  Report* report_ = nullptr;
  void* handle_ = nullptr;
  std::vector<std::byte> rows_;  // A copy, of rows that the host cannot read.
};

/// "{1, 3}"
std::string text_of(const RankSet& set);

}  // namespace sluice::faults
