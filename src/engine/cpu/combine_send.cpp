// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/mutants.hpp"
#include "engine/cpu/context.hpp"
#include "engine/cpu/handle_writer.hpp"
#include "engine/cpu/handshake.hpp"
#include "engine/cpu/streaming.hpp"
#include "engine/registered_rows.hpp"
#include "engine/row_grid.hpp"
#include "numeric/float_environment.hpp"
#include "protocol/epochs.hpp"
#include "routing/routes.hpp"

/// combine, send half: what the expert's rank does for every home. One record per (token, rank)
/// with the partial sum and the mask of the routes in it, or with `single` one per route. Records
/// are pushed into homes' lanes (latency), staged for them, or left in the caller's registered y.
namespace sluice::engine::cpu {
namespace {

namespace cell_flags = protocol::cell_flags;
using base::mutant;
using base::Mutant;
using protocol::CellKind;

DType codec_dtype(CodecKind kind) noexcept {
  return codec::row_dtype({kind, ScaleForm::f32, 128});
}

Layout layout_of(const CombineSend& request) noexcept {
  return request.handle.given() ? request.handle.layout() : Layout::rank_major;
}

protocol::CellContent agreed_content(const Context& context, const CombineOperation& operation) {
  const CombineSend& request = operation.request;
  protocol::CellContent content;
  content.flags = (request.refused ? cell_flags::kRefused : 0) |
                  (operation.weights_phase ? cell_flags::kGivenWeights : 0) |
                  (request.row_weights.given() ? cell_flags::kRowWeights : 0) |
                  (request.plain_sum ? cell_flags::kPlainSum : 0);
  content.mode = static_cast<std::uint8_t>(context.config.options.mode);
  content.layout = static_cast<std::uint8_t>(layout_of(request));
  content.codec_kind = static_cast<std::uint8_t>(request.codec);
  content.codec_form = static_cast<std::uint8_t>(request.reduce);
  return content;
}

/// The records of one home: forms them one after the other.
class HomeAnswer {
 public:
  HomeAnswer(Context& context, const CombineOperation& operation, const HandleArrays& handle,
             int home)
      : context_(context),
        request_(operation.request),
        epoch_(operation.epoch),
        weights_phase_(operation.weights_phase),
        handle_(handle),
        y_(operation.request.y),
        row_weights_(operation.request.row_weights.given() ? RowGrid(operation.request.row_weights)
                                                           : RowGrid()),
        home_(home),
        bank_(protocol::bank_of(operation.epoch, context.config.window.banks)),
        codec_dtype_(codec_dtype(operation.request.codec)),
        streaming_(worth_streaming(static_cast<std::size_t>(handle.header->records) *
                                   context.config.window.combine_row_bytes)) {
    if (context.throughput()) {
      const int stage = protocol::stage_of(operation.epoch, context.config.window.combine_stages);
      row_offset_ = context.layout.staged_combine_row(stage, home, 0);
      out_ = context.lanes.window(context.rank()) + row_offset_;
    } else {
      out_ = context.lanes.combine_row_out(home, bank_, 0);
    }
  }

  /// Forms all records; the number of slots used. `in_place`: rows stay in y, only masks travel.
  int form(bool in_place) {
    const std::int64_t begin = handle_.source_offsets[home_];
    const std::int64_t end = handle_.source_offsets[home_ + 1];
    for (std::int64_t record = begin; record < end; ++record) {
      const std::uint32_t present = present_routes(record);
      if (request_.reduce == Reduce::single) {
        put_single(record, present);
      } else if (in_place) {
        put_mask(answered(record, present, present));
      } else {
        put_sum(record, present);
      }
      if (request_.row_weights.given()) put_row_weights(record, begin);
    }
    return slot_;
  }

  std::uint64_t row_offset() const noexcept { return row_offset_; }

 private:
  const std::int32_t* ids(std::int64_t record) const noexcept {
    return handle_.local_ids + record * context_.top_k();
  }
  const std::int32_t* rows(std::int64_t record) const noexcept {
    return handle_.route_rows + record * context_.top_k();
  }
  const float* weights(std::int64_t record) const noexcept {
    if (weights_phase_ && !mutant(Mutant::given_weights_ignored)) {
      return context_.lanes.given_weights_in(
          home_, bank_, static_cast<int>(record - handle_.source_offsets[home_]));
    }
    return handle_.local_weights + record * context_.top_k();
  }

  std::uint32_t present_routes(std::int64_t record) const noexcept {
    const std::int32_t* route_rows = rows(record);
    std::uint32_t mask = 0;
    for (int k = 0; k < context_.top_k(); ++k) {
      if (route_rows[k] != Handle::kRowAbsent) mask |= 1U << k;
    }
    return mask;
  }

  // Of `routes`, those whose row is stored; a duplicate has the row of its lowest k.
  std::uint32_t answered(std::int64_t record, std::uint32_t present,
                         std::uint32_t routes) const noexcept {
    const std::int32_t* route_rows = rows(record);
    const std::int32_t* route_ids = ids(record);
    std::uint32_t mask = 0;
    for (std::uint32_t left = routes; left != 0; left &= left - 1) {
      const int k = std::countr_zero(left);
      int first = k;
      if (route_rows[k] == Handle::kRowDuplicate) {
        for (std::uint32_t lower = present; lower != 0; lower &= lower - 1) {
          first = std::countr_zero(lower);
          if (route_ids[first] == route_ids[k]) break;
        }
      }
      if (route_rows[first] >= 0) mask |= 1U << k;
    }
    return mask;
  }

  void put_mask(std::uint32_t mask) noexcept {
    *context_.lanes.combine_mask_out(home_, bank_, slot_++) = mask;
    count_bytes(sizeof(mask));
  }

  void put_sum(std::int64_t record, std::uint32_t present) {
    const std::int32_t* route_rows = rows(record);
    int count = 0;
    bool duplicates = false;
    for (int k = 0; k < context_.top_k(); ++k) {
      duplicates = duplicates || route_rows[k] == Handle::kRowDuplicate;
    }
    for (int k = 0; k < context_.top_k(); ++k) {
      if (route_rows[k] < 0) continue;
      auto& term = terms_[static_cast<std::size_t>(count++)];
      term.row = y_.row(route_rows[k]);
      const float* record_weights = weights(record);
      term.weight = duplicates ? routing::merged_weight(ids(record), record_weights, present, k)
                               : record_weights[k];
      if (handle_.layout() == Layout::rank_major) break;  // y is the partial sum.
    }
    if (mutant(Mutant::sum_descending)) std::reverse(terms_.begin(), terms_.begin() + count);
    if (count > 0) sum(count);
    put_mask(duplicates ? answered(record, present, present) : stored(record));
  }

  std::uint32_t stored(std::int64_t record) const noexcept {
    const std::int32_t* route_rows = rows(record);
    std::uint32_t mask = 0;
    for (int k = 0; k < context_.top_k(); ++k) {
      if (route_rows[k] >= 0) mask |= 1U << k;
    }
    return mask;
  }

  void sum(int count) {
    const trace::Span span(context_.timeline, trace::Phase::sum, "combine", epoch_);
    codec::SumArgs args;
    args.terms = {terms_.data(), static_cast<std::size_t>(count)};
    args.term_dtype = request_.y.dtype;
    args.weighted = handle_.layout() != Layout::rank_major && !request_.plain_sum;
    args.out = out_ + static_cast<std::size_t>(slot_) * context_.layout.combine_row_stride();
    args.out_dtype = codec_dtype_;
    args.elements = context_.hidden();
    args.streaming = streaming_;
    context_.kernels.sum(args);
    if (!context_.throughput()) count_bytes(context_.config.window.combine_row_bytes);
  }

  // One slot per distinct route, stored or not, so that home can number them.
  void put_single(std::int64_t record, std::uint32_t present) {
    const std::int32_t* route_rows = rows(record);
    const std::int32_t* route_ids = ids(record);
    for (std::uint32_t left = routing::distinct_routes(route_ids, present); left != 0;
         left &= left - 1) {
      const int k = std::countr_zero(left);
      if (route_rows[k] >= 0) {
        const trace::Span span(context_.timeline, trace::Phase::put, "combine", epoch_);
        context_.kernels.convert(
            y_.row(route_rows[k]), request_.y.dtype,
            out_ + static_cast<std::size_t>(slot_) * context_.layout.combine_row_stride(),
            codec_dtype_, context_.hidden());
        if (!context_.throughput()) count_bytes(context_.config.window.combine_row_bytes);
      }
      std::uint32_t routes = 0;  // The route and its duplicates.
      for (std::uint32_t other = present; other != 0; other &= other - 1) {
        const int duplicate = std::countr_zero(other);
        if (route_ids[duplicate] == route_ids[k]) routes |= 1U << duplicate;
      }
      put_mask(route_rows[k] >= 0 ? routes : 0);
    }
  }

  void put_row_weights(std::int64_t record, std::int64_t begin) noexcept {
    float* out = context_.lanes.row_weights_out(home_, bank_, static_cast<int>(record - begin));
    const std::int32_t row = first_row(record);
    const std::byte* from = row >= 0 ? row_weights_.row(row) : nullptr;
    for (int k = 0; k < context_.top_k(); ++k) {
      out[k] = 0.0F;
      if (from != nullptr && rows(record)[k] >= 0) {
        std::memcpy(&out[k], from + k * row_weights_.element_stride(), sizeof(float));
      }
    }
    count_bytes(sizeof(float) * static_cast<std::size_t>(context_.top_k()));
  }

  std::int32_t first_row(std::int64_t record) const noexcept {
    const std::int32_t* route_rows = rows(record);
    const auto* found = std::find_if(route_rows, route_rows + context_.top_k(),
                                     [](std::int32_t row) { return row >= 0; });
    return found == route_rows + context_.top_k() ? Handle::kRowAbsent : *found;
  }

  void count_bytes(std::size_t bytes) noexcept {
    if (home_ == context_.rank()) return;
    context_.statistics.combine_wire_bytes += static_cast<std::int64_t>(bytes);
  }

  Context& context_;
  const CombineSend& request_;
  std::uint64_t epoch_;
  bool weights_phase_;  // Weights came with this combine, not with the dispatch.
  const HandleArrays& handle_;
  RowGrid y_;
  RowGrid row_weights_;
  int home_;
  int bank_;
  DType codec_dtype_;
  bool streaming_;
  std::uint64_t row_offset_ = 0;
  std::byte* out_ = nullptr;
  int slot_ = 0;
  std::array<codec::SumTerm, kMaxTopk> terms_{};
};

Exchange exchange_of(CombineOperation& operation) {
  return {protocol::Kind::combine, operation.epoch, operation.request.timeout, &operation.wait_ns};
}

// The first phase when weights are given to combine: to every rank the weights of its records.
void put_weights(Context& context, CombineOperation& operation) {
  const Exchange exchange = exchange_of(operation);
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);
  const auto top_k = static_cast<std::size_t>(context.top_k());
  std::fill(operation.next_slot.begin(), operation.next_slot.end(), 0);
  if (!operation.request.refused) {
    const HandleArrays handle(context.handle_layout, operation.request.handle.data());
    for (int token = 0; token < operation.tokens; ++token) {
      const std::size_t first = static_cast<std::size_t>(token) * top_k;
      for (const routing::Destination& to :
           routing::Destinations(handle.topk_ids + first, context.top_k(), context.config.map)) {
        const int record = operation.next_slot[static_cast<std::size_t>(to.rank)]++;
        if (context.suspects.contains(to.rank)) continue;
        float* out = context.lanes.given_weights_out(to.rank, bank, record);
        for (int k = 0; k < context.top_k(); ++k) {
          out[k] = ((to.mask >> k) & 1U) != 0
                       ? operation.weights[first + static_cast<std::size_t>(k)]
                       : 0.0F;
        }
        if (to.rank != context.rank()) {
          context.statistics.combine_wire_bytes += static_cast<std::int64_t>(top_k * sizeof(float));
        }
      }
    }
  }
  for (int step = 1; step <= context.ranks(); ++step) {
    const int peer = (context.rank() + step) % context.ranks();
    if (context.suspects.contains(peer)) continue;
    protocol::CellContent content = operation.content;
    content.records = operation.next_slot[static_cast<std::size_t>(peer)];
    publish_cell(context, exchange, peer, CellKind::weights, content);
  }
}

void take_weights(Context& context, CombineOperation& operation) {
  const CombineSend& request = operation.request;
  operation.tokens = request.handle.given() ? static_cast<int>(request.handle.tokens()) : 0;
  const auto top_k = static_cast<std::size_t>(context.top_k());
  if (request.refused && !request.handle.given()) return;
  if (!request.weights.given() || request.refused) {
    std::copy_n(static_cast<const float*>(request.handle.topk_weights().data),
                static_cast<std::size_t>(operation.tokens) * top_k, operation.weights.data());
    return;
  }
  const RowGrid grid(request.weights);
  for (int token = 0; token < operation.tokens; ++token) {
    for (std::size_t k = 0; k < top_k; ++k) {
      std::memcpy(&operation.weights[static_cast<std::size_t>(token) * top_k + k],
                  grid.row(token) + static_cast<std::ptrdiff_t>(k) * grid.element_stride(),
                  sizeof(float));
    }
  }
}

}  // namespace

void answer_homes(Context& context, CombineOperation& operation) {
  const numeric::FloatEnvironment environment;
  const CombineSend& request = operation.request;
  const Exchange exchange = exchange_of(operation);
  const Layout layout = layout_of(request);

  // rank_major rows that peers can read where they are and as they are need no staging.
  std::uint64_t y_offset = 0;
  const bool in_place =
      !request.refused && context.throughput() && layout == Layout::rank_major &&
      context.config.options.y_memory == YMemory::registered &&
      request.y.dtype == codec_dtype(request.codec) &&
      registered_offset(context.heaps.base(context.rank()), context.heaps.bytes(context.rank()),
                        request.y, &y_offset);
  operation.zero_copy = in_place;

  for (int step = 1; step <= context.ranks(); ++step) {
    const int home = (context.rank() + step) % context.ranks();
    if (context.suspects.contains(home)) continue;
    protocol::CellContent content = operation.content;
    if (!request.refused) {
      const HandleArrays handle(context.handle_layout, request.handle.data());
      if (!operation.served.contains(home)) {
        content.flags |= cell_flags::kNothing;
      } else {
        HomeAnswer answer(context, operation, handle, home);
        content.records = answer.form(in_place);
        content.row_offset = answer.row_offset();
        content.row_stride = context.layout.combine_row_stride();
        if (in_place) {
          content.flags |= cell_flags::kRegistered;
          content.row_stride =
              static_cast<std::uint64_t>(request.y.strides[0]) * size_of(request.y.dtype);
          content.row_offset = y_offset + static_cast<std::uint64_t>(handle.source_offsets[home]) *
                                              content.row_stride;
        }
      }
    }
    publish_cell(context, exchange, home, CellKind::combine, content);
  }
}

void send_combine(Context& context, CombineOperation& operation) {
  const CombineSend& request = operation.request;
  operation.wait_ns = 0;
  operation.zero_copy = false;
  take_weights(context, operation);
  operation.weights_phase = request.weights.given() && request.reduce == Reduce::rank &&
                            !request.plain_sum && layout_of(request) != Layout::rank_major;
  operation.content = agreed_content(context, operation);
  operation.served = {};
  if (!request.refused) {
    operation.served = HandleArrays(context.handle_layout, request.handle.data()).header->accepted;
  }
  open_send(context, exchange_of(operation));
  if (operation.weights_phase || request.refused) put_weights(context, operation);
  // With weights on their way, sums are formed in the receive half, when they have come.
  if (!operation.weights_phase || request.refused) answer_homes(context, operation);
}

}  // namespace sluice::engine::cpu
