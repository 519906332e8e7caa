// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/reference.hpp"
#include "sluice/communicator.hpp"
#include "support/data.hpp"
#include "support/routing.hpp"
#include "support/run_ranks.hpp"

/// A scenario is a communicator and a list of steps; a step is a dispatch with what follows from
/// it. Inputs and expected results of all ranks are prepared before any rank starts, so that ranks
/// as processes inherit them and nothing of the library takes part in making them.
namespace sluice::conformance {

enum class RowsFrom { library, caller, allocator };
enum class Flow { whole, halves, plan_then_move };
enum class EncodedX {
  no,
  apart,
  one_record
};  // Scales in a tensor of their own, or behind each row.

/// What a step does; equal on all ranks.
struct StepSpec {
  // Routing and data.
  support::RoutingKind routing = support::RoutingKind::distinct;
  support::TokensKind tokens = support::TokensKind::varied;
  support::MaskKind mask = support::MaskKind::none;
  int bad_percent = 0;
  support::DataKind data = support::DataKind::ordinary;
  DType x_dtype = DType::bf16;
  DType ids_dtype = DType::i32;
  bool weights_at_dispatch = true;
  int input_gap = 0;  ///< Elements between the rows of every input.
  bool registered_x = false;
  /// fp8: x is given encoded, with scales: any codes, not only those that an encoder would write.
  EncodedX encoded_x = EncodedX::no;

  // Dispatch.
  std::optional<Layout> layout;
  std::optional<Codec> codec;
  std::int64_t expert_alignment = 1;
  std::int64_t capacity = 0;
  Flow flow = Flow::whole;
  RowsFrom rows_from = RowsFrom::library;
  int output_gap = 0;                    ///< Elements between the rows of every given output.
  std::int64_t spare_rows = 0;           ///< Rows of a given tensor beyond what is needed.
  bool token_contiguous_scales = false;  ///< Of given scales.
  bool zero_padding = false;
  bool caller_handle = false;
  bool row_counts = false;  ///< Of dispatches and plans, for the host.
  int cached = 0;           ///< Further dispatches of other data along the same handle.

  // Combine.
  int combines = 1;
  DType y_dtype = DType::bf16;
  bool registered_y = false;  ///< Always so if the communicator's y_memory says it,
  bool ordinary_y = false;    ///< but for steps that say otherwise.
  DType out_dtype = DType::bf16;
  std::optional<CodecKind> combine_codec;
  std::optional<Reduce> reduce;
  bool plain_sum = false;
  bool weights_at_combine = false;
  int shared_results = 0;
  int biases = 0;
  bool renormalize = true;
  bool row_weights = false;  ///< rank_major: send weights home.

  bool delays = false;           ///< Sleep for a while, differing between ranks, before every call.
  std::vector<bool> lost_ranks;  ///< Ranks that refuse: their results do not come home.
};

struct Scenario {
  int ranks = 4;
  Shape shape;
  CommunicatorOptions options;
  std::uint64_t seed = 1;
  std::vector<StepSpec> steps;
};

/// A step with the inputs and the expected results of every rank.
struct Step {
  StepSpec spec;
  std::string name;
  std::uint64_t seed = 0;
  /// The dispatch, then its cached repetitions with other data.
  std::vector<reference::DispatchProblem> dispatches;
  std::vector<reference::Dispatched> dispatched;
  std::vector<reference::CombineProblem> combines;
  std::vector<std::vector<reference::Combined>> combined;

  Layout layout() const { return dispatches[0].layout; }
  const Codec& codec() const { return dispatches[0].codec; }
  /// Shape of the received tensor as a caller would make it, without spare rows.
  std::vector<std::int64_t> rows_shape(int rank) const;
};

/// Draws the inputs of a step and computes its results.
Step prepare_step(const Scenario& scenario, const StepSpec& spec, int number);
/// Replaces the inputs of some ranks' dispatch by none (they refused), and computes anew.
void drop_inputs(Step& step, const std::vector<int>& ranks);

/// Bytes that cover the registered tensors of a step, generously.
std::size_t registered_bytes(const Scenario& scenario);

/// How this executable runs ranks: as threads or as processes.
support::RunRanks launcher();
/// The node of every rank, as the launcher places them.
std::vector<int> rank_to_node(int ranks);

/// Creates the communicator of a scenario; a failure is a finding.
std::optional<Communicator> make_communicator(World& world, const Scenario& scenario,
                                              support::Findings& findings);
/// Dispatch, cached dispatches and combines of one step, each checked.
void run_step(Communicator& communicator, const Step& step, support::Findings& findings);
/// Runs all steps on one communicator. Returns what went wrong, "" if nothing did.
std::string run(const Scenario& scenario);
/// Runs `body` with a communicator of the scenario on every rank.
using CommunicatorBody =
    std::function<void(World& world, Communicator& communicator, support::Findings& findings)>;
std::string run_body(const Scenario& scenario, const CommunicatorBody& body);

}  // namespace sluice::conformance
