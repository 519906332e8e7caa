// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/mutants.hpp"
#include "engine/cpu/context.hpp"
#include "engine/cpu/handle_writer.hpp"
#include "engine/cpu/handshake.hpp"
#include "engine/cpu/streaming.hpp"
#include "engine/cpu/token_terms.hpp"
#include "engine/row_grid.hpp"
#include "numeric/float_environment.hpp"
#include "protocol/epochs.hpp"
#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"
#include "routing/routes.hpp"

/// combine, receive half: waits for every rank's records and sums them at home, token by token, in
/// the order that docs/number-formats.md gives.
namespace sluice::engine::cpu {
namespace {

using base::mutant;
using base::Mutant;
using protocol::CellKind;

/// Brings the weights of rank_major rows home, as they were sent for each record.
class RowWeights {
 public:
  RowWeights(const Context& context, const CombineOperation& operation, const HandleArrays& handle,
             TensorView out)
      : context_(context),
        operation_(operation),
        handle_(handle),
        out_(out),
        bank_(protocol::bank_of(operation.epoch, context.config.window.banks)) {}

  void bring_home(int token) {
    const std::int32_t* ids =
        handle_.topk_ids + static_cast<std::ptrdiff_t>(token) * context_.top_k();
    for (int k = 0; k < context_.top_k(); ++k) put(token, k, 0.0F);
    for (const routing::Destination& from :
         routing::Destinations(ids, context_.top_k(), context_.config.map)) {
      const auto rank = static_cast<std::size_t>(from.rank);
      const int record = next_record_[rank]++;
      if (!operation_.answers[rank].accepted) continue;
      const float* sent = context_.lanes.row_weights_in(from.rank, bank_, record);
      std::uint32_t left = from.mask;
      if (operation_.request.reduce == Reduce::node && !context_.together(from.rank)) {
        // With the sum of its node come those of all its ranks, by token.
        const int node = context_.nodes().node_of(from.rank);
        const int sender = context_.nodes().rail_peer(context_.rank(), node);
        sent = context_.lanes.row_weights_in(sender, bank_, token);
        left &= *context_.lanes.combine_mask_in(sender, bank_, token);
      }
      for (; left != 0; left &= left - 1) {
        const int k = std::countr_zero(left);
        put(token, k, sent[k]);
      }
    }
  }

 private:
  void put(int token, int k, float weight) noexcept {
    std::memcpy(out_.row(token) + k * out_.element_stride(), &weight, sizeof(weight));
  }

  const Context& context_;
  const CombineOperation& operation_;
  const HandleArrays& handle_;
  RowGrid out_;
  int bank_;
  std::array<int, kMaxRanks> next_record_{};
};

/// Sums the tokens of this rank.
class HomeSum {
 public:
  HomeSum(Context& context, const CombineOperation& operation, TensorView out,
          const CombineOutputs& outputs)
      : context_(context),
        operation_(operation),
        outputs_(outputs),
        sum_target_{combine_dtype(operation), context.hidden(), false},
        out_(out),
        out_dtype_(out.dtype),
        streaming_(worth_streaming(static_cast<std::size_t>(operation.tokens) *
                                   static_cast<std::size_t>(context.hidden()) *
                                   size_of(out.dtype))) {
    for (const ConstTensorView& extra : outputs.shared_results) add_extra(extra);
    for (const ConstTensorView& extra : outputs.biases) add_extra(extra);
    if (outputs.surviving_weight.given()) {
      surviving_ = static_cast<std::byte*>(outputs.surviving_weight.data);
    }
  }

  /// `next`: what will be summed next, a hint; without terms if nothing will.
  void sum(int token, const TokenTerms& terms, const TokenTerms& next) {
    for (int i = 0; i < terms.converted_count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      form(context_.kernels, terms.converted[at],
           context_.sum_rows.data() + at * context_.config.window.combine_row_bytes, sum_target_,
           nullptr);
    }
    if (operation_.request.reduce == Reduce::node) {
      add_nodes(token, terms);
    } else {
      args_ = {};
      args_.terms = terms_of(terms, terms_);
      args_.next = terms_of(next, next_terms_);
      args_.weighted = terms.weighted;
      args_.groups = groups_of(terms);
      add_up(token, terms);
    }
  }

  std::int64_t lost_routes() const noexcept { return lost_; }

 private:
  void add_extra(const ConstTensorView& view) {
    extra_grids_[extra_count_] = RowGrid(view);
    extras_[extra_count_++] = {nullptr, view.dtype};
  }

  float weight_of(std::uint32_t routes, const float* weights) const noexcept {
    float sum = 0.0F;
    for (; routes != 0; routes &= routes - 1) sum += weights[std::countr_zero(routes)];
    return sum;
  }

  static std::span<const std::uint8_t> groups_of(const TokenTerms& terms) noexcept {
    if (!terms.weighted) return {};
    return {terms.groups.data(), static_cast<std::size_t>(terms.group_count)};
  }

  // The sum of this node's ranks first, which the combine codec rounds like those of other nodes.
  void add_nodes(int token, const TokenTerms& terms) {
    std::byte* const own_sum =
        context_.sum_rows.data() +
        static_cast<std::size_t>(context_.top_k()) * context_.config.window.combine_row_bytes;
    if (terms.count > 0) {
      codec::SumArgs own;
      own.terms = terms_of(terms, terms_);
      own.term_dtype = sum_target_.dtype;
      own.weighted = terms.weighted;
      own.groups = groups_of(terms);
      own.out = own_sum;
      own.out_dtype = sum_target_.dtype;
      own.elements = context_.hidden();
      context_.kernels.sum(own);
    }
    for (int i = 0; i < terms.node_sum_count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const void* const sum = terms.node_sums[at];
      next_terms_[at] = {sum == nullptr ? own_sum : sum, 1.0F};
    }
    args_ = {};
    args_.terms = {next_terms_.data(), static_cast<std::size_t>(terms.node_sum_count)};
    add_up(token, terms);
  }

  // Adds the terms of args_ up, and what comes after them.
  void add_up(int token, const TokenTerms& terms) {
    const float* weights =
        operation_.weights.data() + static_cast<std::ptrdiff_t>(token) * context_.top_k();
    codec::SumArgs& args = args_;
    const std::uint32_t lost = terms.expected & ~terms.answered;
    if (!mutant(Mutant::lost_not_counted)) lost_ += std::popcount(lost);
    if (surviving_ != nullptr) {
      const auto counted = mutant(Mutant::surviving_counts_all) ? terms.expected : terms.answered;
      const float surviving = weight_of(counted, weights);
      std::memcpy(surviving_ + token * outputs_.surviving_weight.strides[0] *
                                   static_cast<std::ptrdiff_t>(sizeof(float)),
                  &surviving, sizeof(surviving));
    }
    if (lost != 0 && terms.answered != 0 && outputs_.renormalize &&
        !mutant(Mutant::lost_not_scaled)) {
      const float whole = weight_of(terms.expected, weights);
      const float surviving = weight_of(terms.answered, weights);
      args.scaled = whole != surviving;
      args.scale = whole / surviving;
    }
    for (std::size_t i = 0; i < extra_count_; ++i) extras_[i].row = extra_grids_[i].row(token);
    args.term_dtype = sum_target_.dtype;
    args.extras = {extras_.data(), extra_count_};
    args.out = out_.row(token);
    args.out_dtype = out_dtype_;
    args.elements = context_.hidden();
    args.streaming = streaming_;
    context_.kernels.sum(args);
  }

  using Terms = std::array<codec::SumTerm, kMaxTopk>;
  static std::span<const codec::SumTerm> terms_of(const TokenTerms& from, Terms& out) noexcept {
    for (int i = 0; i < from.count; ++i) {
      out[static_cast<std::size_t>(i)] = from.terms[static_cast<std::size_t>(i)].term;
    }
    return {out.data(), static_cast<std::size_t>(from.count)};
  }

  Context& context_;
  const CombineOperation& operation_;
  const CombineOutputs& outputs_;
  SumTarget sum_target_;
  RowGrid out_;
  DType out_dtype_;
  bool streaming_;
  std::array<RowGrid, kMaxBiases + kMaxSharedResults> extra_grids_{};
  std::array<codec::SumExtra, kMaxBiases + kMaxSharedResults> extras_{};
  std::size_t extra_count_ = 0;
  std::byte* surviving_ = nullptr;
  codec::SumArgs args_;
  Terms terms_;
  Terms next_terms_;
  std::int64_t lost_ = 0;
};

// Records that every rank owes this one.
void count_expected(const Context& context, CombineOperation& operation,
                    const HandleArrays& handle) {
  std::fill(operation.expected.begin(), operation.expected.end(), 0);
  const bool single = operation.request.reduce == Reduce::single;
  for (int token = 0; token < operation.tokens; ++token) {
    const std::int32_t* ids =
        handle.topk_ids + static_cast<std::ptrdiff_t>(token) * context.top_k();
    for (const routing::Destination& from :
         routing::Destinations(ids, context.top_k(), context.config.map)) {
      operation.expected[static_cast<std::size_t>(from.rank)] +=
          single ? std::popcount(routing::distinct_routes(ids, from.mask)) : 1;
    }
  }
}

// The second phase of a combine whose weights come with it. Homes whose weights did not come, or do
// not fit this rank's records, are answered with nothing.
void answer_with_weights(Context& context, CombineOperation& operation, const Exchange& exchange) {
  const RankSet missing = await_cells(context, exchange, CellKind::weights);
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);
  const HandleArrays handle(context.handle_layout, operation.request.handle.data());
  RankSet unusable = missing;
  for (int home = 0; home < context.ranks(); ++home) {
    operation.expected[static_cast<std::size_t>(home)] =
        static_cast<std::int32_t>(handle.source_offsets[home + 1] - handle.source_offsets[home]);
    // A peer that gave no weights sends its combine cell only.
    const bool came = !missing.contains(home) &&
                      protocol::arrived<protocol::HostAccess>(
                          context.lanes.cell_in(home, CellKind::weights, bank), operation.epoch);
    if (!came || !handle.header->accepted.contains(home)) unusable.insert(home);
  }
  operation.served = judge_cells(context, CellKind::weights, bank, operation.content, unusable,
                                 operation.expected.data(), 0)
                         .accepted;
  answer_homes(context, operation);
}

// Sums all tokens and returns the number of lost routes. Pulled rows may change under the reader
// when their owner has given it up: then the tokens are summed again without that rank, which is
// missing.
std::int64_t sum_tokens(Context& context, CombineOperation& operation, const HandleArrays& handle,
                        RankSet accepted, TensorView out, const CombineOutputs& outputs,
                        RankSet& missing) {
  for (;;) {
    TermFinder finder(context, operation, handle, accepted);
    HomeSum sum(context, operation, out, outputs);
    // One token ahead, so that its rows begin to arrive while the last one is summed.
    std::array<TokenTerms, 2> found;
    if (operation.tokens > 0) finder.find(0, found[0]);
    for (int token = 0; token < operation.tokens; ++token) {
      TokenTerms& next = found[static_cast<std::size_t>(token + 1) % 2];
      next.clear();
      if (token + 1 < operation.tokens) finder.find(token + 1, next);
      sum.sum(token, found[static_cast<std::size_t>(token) % 2], next);
    }
    context.kernels.finish_streaming();
    if (outputs.weights_home.given()) {
      RowWeights weights(context, operation, handle, outputs.weights_home);
      for (int token = 0; token < operation.tokens; ++token) weights.bring_home(token);
    }
    const RankSet lost = context.reads_in_place() ? look_back(context, accepted) : RankSet();
    if (lost.empty()) return sum.lost_routes();
    for (int rank = 0; rank < context.ranks(); ++rank) {
      if (!lost.contains(rank)) continue;
      accepted.erase(rank);
      missing.insert(rank);
    }
  }
}

}  // namespace

CombineResult receive_combine(Context& context, CombineOperation& operation, TensorView out,
                              const CombineOutputs& outputs, Status status) {
  const numeric::FloatEnvironment environment;
  const CombineSend& request = operation.request;
  const Exchange exchange{protocol::Kind::combine, operation.epoch, request.timeout,
                          &operation.wait_ns};
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);
  CombineResult result;
  result.status = std::move(status);

  if (operation.weights_phase && !request.refused) {
    answer_with_weights(context, operation, exchange);
  }
  result.report.missing = await_cells(context, exchange, CellKind::combine);

  if (request.handle.given() && result.status.ok()) {
    const HandleArrays handle(context.handle_layout, request.handle.data());
    count_expected(context, operation, handle);
    const Verdict verdict = judge_cells(context, CellKind::combine, bank, operation.content,
                                        result.report.missing, operation.expected.data(), 0);
    result.report.refused = verdict.refused;
    result.report.mismatched = verdict.mismatched;
    if (verdict.first_mismatch >= 0) {
      result.status = mismatch_status(
          operation.content,
          context.lanes.cell_in(verdict.first_mismatch, CellKind::combine, bank).content,
          verdict.first_mismatch, "combine", operation.epoch);
    }
    const trace::Span span(context.timeline, trace::Phase::sum, "combine", operation.epoch);
    result.report.lost_routes = sum_tokens(context, operation, handle, verdict.accepted, out,
                                           outputs, result.report.missing);
  }
  ++context.statistics.combines;
  close_receive(context, exchange, operation.zero_copy);
  result.report.wait_ns = operation.wait_ns;
  return result;
}

}  // namespace sluice::engine::cpu
