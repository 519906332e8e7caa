// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/communicator.hpp"

namespace sluice::bench {

/// How the tokens choose their experts; docs/benchmarking.md defines each.
enum class Distribution : std::uint8_t { uniform, zipf, hot, grouped };

/// uniform | zipf:S | hot:N | grouped:G | grouped:G/N.
struct RoutingSpec {
  Distribution distribution = Distribution::uniform;
  double parameter = 0.0;
  int groups = 8;  ///< grouped: of equally many experts, of which a token takes `parameter`.

  static Result<RoutingSpec> parse(std::string_view text);
  std::string text() const;
};

/// A GEMM in bf16: [m, k] times [k, n].
struct GemmSize {
  int m = 4096, n = 4096, k = 7168;

  /// M,N,K, or "default".
  static Result<GemmSize> parse(std::string_view text);
};

/// What is measured: equal on all ranks of one run.
struct Case {
  Device engine = Device::cpu;
  int ranks = 4;
  int nodes = 1;  ///< Of ranks that follow each other; they share no memory across nodes.
  int tokens = 128;
  std::vector<int> rank_tokens;  ///< Of every rank, if they differ; `tokens` is then the most.
  int hidden = 7168;
  int top_k = 8;
  int experts = 256;
  Layout layout = Layout::expert_slab;
  Mode mode = Mode::automatic;
  Codec dispatch_codec{CodecKind::fp8, ScaleForm::f32, 128};
  bool encoded = false;  ///< x is given as rows and scales of dispatch_codec, which is fp8.
  CodecKind combine_codec = CodecKind::bf16;
  /// Not given: rank on one node, node on several.
  std::optional<Reduce> reduce;
  YMemory y_memory = YMemory::ordinary;
  bool registered = false;  ///< x and y lie in memory of Communicator::allocate.
  int slot_tokens = 0;
  int in_flight = 2;
  int blocks = 0;              // CommunicatorOptions::block_limit
  std::int64_t slab_rows = 0;  ///< Rows per expert of expert_slab; 0: ranks * tokens.
  RoutingSpec routing;
  int sets = 8;
  int iterations = 200;
  int warmup = 20;
  std::uint64_t seed = 1;
  bool weights_at_combine = false;  ///< topk_weights are given to combine, not to dispatch.
  // cuda only
  int chain = 200;     ///< Operations of one graph, or of one round of plain launches.
  bool graphs = true;  ///< Time graphs.
  bool plain_launches = true;
  int singles = 0;        ///< So many pairs are timed by themselves as well.
  bool combines = false;  ///< Combines are timed alone as well.
  int late_us = 0;        ///< By which ranks are late, to see what waiting costs; 0: not timed.
  std::optional<GemmSize> gemm;  ///< Is timed between the halves of operations.
  double deadline_s = 30.0;

  /// The mode that `automatic` means for this shape.
  Mode resolved_mode() const noexcept;
  /// Fills what depends on other fields, then checks every range.
  Status settle();

  int tokens_of(int rank) const noexcept;
  int first_expert(int rank) const noexcept;
  int local_experts(int rank) const noexcept;
  int rank_of_expert(int expert) const noexcept;
  std::int64_t slab_rows_or_default() const noexcept;
  /// From one row of x to the next. Encoded ones are records of 128-byte alignment, scales behind rows.
  std::size_t x_stride() const noexcept;

  Shape shape() const noexcept;
  CommunicatorOptions communicator_options() const;
  Reduce resolved_reduce() const noexcept {
    return reduce.value_or(nodes > 1 ? Reduce::node : Reduce::rank);
  }
  /// Ranks of every node: equally many, or one more on the first ones.
  std::vector<int> node_sizes() const;
  int node_of(int rank) const;
};

Result<Layout> parse_layout(std::string_view text);
Result<Mode> parse_mode(std::string_view text);
/// bf16, f16, f32, fp8, fp8:pow2, fp8:ue8m0, each fp8 with an optional ":GROUP".
Result<Codec> parse_codec(std::string_view text);
Result<CodecKind> parse_combine_codec(std::string_view text);
Result<Reduce> parse_reduce(std::string_view text);
Result<YMemory> parse_y_memory(std::string_view text);
std::string codec_text(const Codec& codec);
std::string_view y_memory_text(YMemory y_memory) noexcept;

}  // namespace sluice::bench
