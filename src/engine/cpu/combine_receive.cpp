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

DType codec_dtype(CodecKind kind) noexcept {
  return codec::row_dtype({kind, ScaleForm::f32, 128});
}

std::uint32_t low_bits(int count) noexcept {
  return count >= 32 ? ~std::uint32_t{0} : (1U << count) - 1U;
}

/// Where the records of one rank lie.
struct Records {
  const std::byte* rows = nullptr;
  std::uint64_t stride = 0;
  bool accepted = false;
};

/// Sums the tokens of this rank, one after the other.
class HomeSum {
 public:
  HomeSum(Context& context, CombineOperation& operation, const HandleArrays& handle,
          const RankSet& accepted, TensorView out, const CombineOutputs& outputs)
      : context_(context),
        operation_(operation),
        handle_(handle),
        outputs_(outputs),
        bank_(protocol::bank_of(operation.epoch, context.config.window.banks)),
        single_(operation.request.reduce == Reduce::single),
        out_(out),
        out_dtype_(out.dtype) {
    std::fill(operation.next_slot.begin(), operation.next_slot.end(), 0);
    for (int rank = 0; rank < context.ranks(); ++rank) {
      if (accepted.contains(rank)) records_[static_cast<std::size_t>(rank)] = records_of(rank);
    }
    for (const ConstTensorView& extra : outputs.shared_results) add_extra(extra);
    for (const ConstTensorView& extra : outputs.biases) add_extra(extra);
    if (outputs.surviving_weight.given()) {
      surviving_ = static_cast<std::byte*>(outputs.surviving_weight.data);
    }
    if (outputs.weights_home.given()) weights_home_ = RowGrid(outputs.weights_home);
  }

  void token(int token) {
    const std::int32_t* ids =
        handle_.topk_ids + static_cast<std::ptrdiff_t>(token) * context_.top_k();
    const float* weights =
        operation_.weights.data() + static_cast<std::ptrdiff_t>(token) * context_.top_k();
    count_ = 0;
    expected_ = 0;
    answered_ = 0;
    for (const routing::Destination& from :
         routing::Destinations(ids, context_.top_k(), context_.config.map)) {
      expected_ |= from.mask;
      if (single_) {
        take_routes(from, ids, weights);
      } else {
        take_partial_sum(from);
      }
      if (outputs_.weights_home.given()) take_row_weights(from, token);
    }
    if (outputs_.weights_home.given()) clear_row_weights(token);
    if (single_ && !mutant(Mutant::single_unsorted)) sort_terms();
    finish(token, weights);
  }

  std::int64_t lost_routes() const noexcept { return lost_; }

 private:
  struct RouteTerm {
    codec::SumTerm term;
    int k = 0;
  };

  Records records_of(int rank) const noexcept {
    const auto& content = context_.lanes.cell_in(rank, CellKind::combine, bank_).content;
    Records records;
    records.accepted = true;
    if (!context_.throughput()) {
      records.rows =
          context_.lanes.window(context_.rank()) + context_.layout.combine_row(rank, bank_, 0);
      records.stride = context_.layout.combine_row_stride();
      return records;
    }
    const bool registered = (content.flags & protocol::cell_flags::kRegistered) != 0;
    records.rows =
        (registered ? context_.heaps.base(rank) : context_.lanes.window(rank)) + content.row_offset;
    records.stride = content.row_stride;
    return records;
  }

  void add_extra(const ConstTensorView& view) {
    extra_grids_[extra_count_] = RowGrid(view);
    extras_[extra_count_++] = {nullptr, view.dtype};
  }

  // The mask of the next record of a rank, and its row if there is one.
  std::uint32_t next(int rank, const std::byte** row) {
    const Records& records = records_[static_cast<std::size_t>(rank)];
    const int slot = operation_.next_slot[static_cast<std::size_t>(rank)]++;
    if (!records.accepted) return 0;
    *row = records.rows + static_cast<std::uint64_t>(slot) * records.stride;
    const std::uint32_t mask = *context_.lanes.combine_mask_in(rank, bank_, slot);
    if (mask != 0 && context_.throughput() && rank != context_.rank()) {
      context_.statistics.combine_wire_bytes +=
          static_cast<std::int64_t>(context_.config.window.combine_row_bytes);
    }
    return mask;
  }

  void take_partial_sum(const routing::Destination& from) {
    const std::byte* row = nullptr;
    const std::uint32_t mask = next(from.rank, &row) & from.mask;
    if (mask == 0) return;
    answered_ |= mask;
    terms_[count_++].term = {row, 1.0F};
  }

  void take_routes(const routing::Destination& from, const std::int32_t* ids,
                   const float* weights) {
    for (std::uint32_t left = routing::distinct_routes(ids, from.mask); left != 0;
         left &= left - 1) {
      const int k = std::countr_zero(left);
      const std::byte* row = nullptr;
      const std::uint32_t mask = next(from.rank, &row) & from.mask;
      if (mask == 0) continue;
      answered_ |= mask;
      terms_[count_++] = {{row, routing::merged_weight(ids, weights, from.mask, k)}, k};
    }
  }

  void take_row_weights(const routing::Destination& from, int token) {
    const int record = next_record_[static_cast<std::size_t>(from.rank)]++;
    const bool here = records_[static_cast<std::size_t>(from.rank)].accepted;
    const float* sent = here ? context_.lanes.row_weights_in(from.rank, bank_, record) : nullptr;
    for (std::uint32_t left = from.mask; left != 0; left &= left - 1) {
      const int k = std::countr_zero(left);
      put_row_weight(token, k, here ? sent[k] : 0.0F);
    }
  }

  void clear_row_weights(int token) {
    for (std::uint32_t left = low_bits(context_.top_k()) & ~expected_; left != 0;
         left &= left - 1) {
      put_row_weight(token, std::countr_zero(left), 0.0F);
    }
  }

  void put_row_weight(int token, int k, float weight) noexcept {
    std::memcpy(weights_home_.row(token) + k * weights_home_.element_stride(), &weight,
                sizeof(weight));
  }

  // Routes come by rank; a single chain takes them by k.
  void sort_terms() {
    std::sort(terms_.begin(), terms_.begin() + static_cast<std::ptrdiff_t>(count_),
              [](const RouteTerm& a, const RouteTerm& b) { return a.k < b.k; });
  }

  float weight_of(std::uint32_t routes, const float* weights) const noexcept {
    float sum = 0.0F;
    for (; routes != 0; routes &= routes - 1) sum += weights[std::countr_zero(routes)];
    return sum;
  }

  void finish(int token, const float* weights) {
    codec::SumArgs args;
    const std::uint32_t lost = expected_ & ~answered_;
    if (!mutant(Mutant::lost_not_counted)) lost_ += std::popcount(lost);
    if (surviving_ != nullptr) {
      const auto counted = mutant(Mutant::surviving_counts_all) ? expected_ : answered_;
      const float surviving = weight_of(counted, weights);
      std::memcpy(surviving_ + token * outputs_.surviving_weight.strides[0] *
                                   static_cast<std::ptrdiff_t>(sizeof(float)),
                  &surviving, sizeof(surviving));
    }
    if (lost != 0 && answered_ != 0 && outputs_.renormalize && !mutant(Mutant::lost_not_scaled)) {
      const float whole = weight_of(expected_, weights);
      const float surviving = weight_of(answered_, weights);
      args.scaled = whole != surviving;
      args.scale = whole / surviving;
    }
    for (std::size_t i = 0; i < count_; ++i) sum_terms_[i] = terms_[i].term;
    for (std::size_t i = 0; i < extra_count_; ++i) extras_[i].row = extra_grids_[i].row(token);
    args.terms = {sum_terms_.data(), count_};
    args.term_dtype = codec_dtype(operation_.request.codec);
    args.weighted = single_ && !operation_.request.plain_sum;
    args.extras = {extras_.data(), extra_count_};
    args.out = out_.row(token);
    args.out_dtype = out_dtype_;
    args.elements = context_.hidden();
    context_.kernels.sum(args);
  }

  Context& context_;
  CombineOperation& operation_;
  const HandleArrays& handle_;
  const CombineOutputs& outputs_;
  int bank_;
  bool single_;
  RowGrid out_;
  DType out_dtype_;
  std::array<Records, kMaxRanks> records_{};
  std::array<int, kMaxRanks> next_record_{};
  std::array<RowGrid, kMaxBiases + kMaxSharedResults> extra_grids_{};
  std::array<codec::SumExtra, kMaxBiases + kMaxSharedResults> extras_{};
  std::size_t extra_count_ = 0;
  std::byte* surviving_ = nullptr;
  RowGrid weights_home_;
  std::array<RouteTerm, kMaxTopk> terms_{};
  std::array<codec::SumTerm, kMaxTopk> sum_terms_{};
  std::size_t count_ = 0;
  std::uint32_t expected_ = 0;
  std::uint32_t answered_ = 0;
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
    HomeSum sum(context, operation, handle, accepted, out, outputs);
    for (int token = 0; token < operation.tokens; ++token) sum.token(token);
    const RankSet lost = context.throughput() ? look_back(context, accepted) : RankSet();
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
