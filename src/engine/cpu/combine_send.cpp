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
#include "engine/cpu/node_heads.hpp"
#include "engine/cpu/partial_sum.hpp"
#include "engine/cpu/streaming.hpp"
#include "engine/registered_rows.hpp"
#include "engine/row_grid.hpp"
#include "numeric/float_environment.hpp"
#include "protocol/epochs.hpp"
#include "routing/routes.hpp"
#include "window/dispatch_header.hpp"

/// combine, send half: what the expert's rank does for every home. One record per (token, rank)
/// with the partial sum and the mask of the routes in it, or with `single` one per route. Records
/// are pushed into homes' lanes (latency) or staged for them; from y in registered memory homes form
/// them themselves. Those of this rank's own tokens never leave it: its receive half forms them. Those
/// for homes on other nodes are staged for the relay, which sends them as they are, or (reduce = node)
/// adds them to the others of this node.
namespace sluice::engine::cpu {
namespace {

namespace cell_flags = protocol::cell_flags;
using base::mutant;
using base::Mutant;
using protocol::CellKind;

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
  if (request.handle.given()) {
    content.dispatch = HandleArrays(context.handle_layout, request.handle.data()).header->dispatch;
  }
  return content;
}

/// Where the records of one home are written.
struct AnswerPlace {
  std::byte* rows = nullptr;
  std::uint64_t row_offset = 0;  // throughput: from the window's base
  std::uint32_t* masks = nullptr;
  float* row_weights = nullptr;
  std::byte* answer = nullptr;  // a home on another node: AnswerHead
};

AnswerPlace place_for(const Context& context, std::uint64_t epoch, int home) noexcept {
  const int bank = protocol::bank_of(epoch, context.config.window.banks);
  std::byte* const own = context.lanes.window(context.rank());
  AnswerPlace place;
  if (!context.together(home)) {
    const window::RelayLayout& layout = context.relay->site().own();
    const int stage = layout.answer_stage(epoch);
    place.answer = own + layout.answer(home, bank);
    place.rows = own + layout.answer_row(home, stage, 0);
    place.masks = reinterpret_cast<std::uint32_t*>(place.answer + layout.answer_masks());
    place.row_weights = reinterpret_cast<float*>(place.answer + layout.answer_weights());
    return place;
  }
  place.masks = context.lanes.combine_mask_out(home, bank, 0);
  place.row_weights = context.lanes.row_weights_out(home, bank, 0);
  if (context.throughput()) {
    const int stage = protocol::stage_of(epoch, context.config.window.combine_stages);
    place.row_offset = context.layout.staged_combine_row(stage, home, 0);
    place.rows = own + place.row_offset;
  } else {
    place.rows = context.lanes.combine_row_out(home, bank, 0);
  }
  return place;
}

/// The records of one home: forms them one after the other.
class HomeAnswer {
 public:
  HomeAnswer(Context& context, const CombineOperation& operation, const HandleArrays& handle,
             int home, const AnswerPlace& place)
      : context_(context),
        request_(operation.request),
        epoch_(operation.epoch),
        given_weights_(operation.weights_phase && !mutant(Mutant::given_weights_ignored)),
        handle_(handle),
        y_(results_of(operation)),
        home_(home),
        bank_(protocol::bank_of(operation.epoch, context.config.window.banks)),
        begin_(handle.source_offsets[home]),
        end_(handle.source_offsets[home + 1]),
        place_(place),
        target_{combine_dtype(operation), context.hidden(),
                worth_streaming(static_cast<std::size_t>(handle.header->records) *
                                context.config.window.combine_row_bytes)} {
    if (request_.row_weights.given()) row_weights_ = RowGrid(request_.row_weights);
  }

  /// Says where the rows of all records lie, or forms them; the number of slots.
  int form(bool in_place) {
    if (in_place) {
      put_route_rows();
    } else if (request_.reduce == Reduce::single) {
      for (std::int64_t record = begin_; record < end_; ++record) put_single(routes_of(record));
    } else {
      put_sums();
    }
    if (request_.row_weights.given()) {
      for (std::int64_t record = begin_; record < end_; ++record) put_row_weights(record);
    }
    if (target_.streaming) context_.kernels.finish_streaming();
    return slot_;
  }

 private:
  RecordRoutes routes_of(std::int64_t record) const noexcept {
    const std::int64_t first = record * context_.top_k();
    RecordRoutes routes;
    routes.rows = handle_.route_rows + first;
    routes.ids = handle_.local_ids + first;
    routes.weights = given_weights_ ? context_.lanes.given_weights_in(
                                          home_, bank_, static_cast<int>(record - begin_))
                                    : handle_.local_weights + first;
    routes.top_k = context_.top_k();
    return routes;
  }

  std::byte* row_out() const noexcept {
    return place_.rows + static_cast<std::size_t>(slot_) * context_.layout.combine_row_stride();
  }

  // This rank's own records are found in its handle.
  void put_route_rows() noexcept {
    const int records = static_cast<int>(end_ - begin_);
    if (home_ != context_.rank() && records > 0) {
      const std::size_t words =
          static_cast<std::size_t>(records) * static_cast<std::size_t>(context_.top_k());
      std::memcpy(context_.lanes.route_rows_out(home_, bank_, 0),
                  handle_.route_rows + begin_ * context_.top_k(), words * sizeof(std::int32_t));
      count_bytes(words * sizeof(std::int32_t));
    }
    for (std::int64_t record = begin_; record < end_; ++record) {
      slot_ += request_.reduce == Reduce::single ? slots_of(routes_of(record)) : 1;
    }
  }

  static int slots_of(const RecordRoutes& record) noexcept {
    return std::popcount(routing::distinct_routes(record.ids, present_routes(record)));
  }

  void put_mask(std::uint32_t mask) noexcept {
    place_.masks[slot_++] = mask;
    count_bytes(sizeof(mask));
  }

  void put_sums() {
    if (begin_ == end_) return;
    PartialSum* sum = &sums_[0];
    PartialSum* next = &sums_[1];
    gather(y_, routes_of(begin_), *next);
    for (std::int64_t record = begin_; record < end_; ++record) {
      std::swap(sum, next);
      next->count = 0;
      if (record + 1 < end_) gather(y_, routes_of(record + 1), *next);
      if (sum->count > 0) {
        const trace::Span span(context_.timeline, trace::Phase::sum, "combine", epoch_);
        cpu::form(context_.kernels, *sum, row_out(), target_, next);
        count_row();
      }
      put_mask(sum->answered);
    }
  }

  // One slot per distinct route, stored or not, so that home can number them.
  void put_single(const RecordRoutes& record) {
    const std::uint32_t present = present_routes(record);
    for (std::uint32_t left = routing::distinct_routes(record.ids, present); left != 0;
         left &= left - 1) {
      const int k = std::countr_zero(left);
      const std::int32_t row = record.rows[k];
      if (row >= 0) {
        const trace::Span span(context_.timeline, trace::Phase::put, "combine", epoch_);
        context_.kernels.convert(y_.grid.row(row), y_.dtype, row_out(), target_.dtype,
                                 target_.elements);
        count_row();
      }
      put_mask(row >= 0 ? routing::routes_to_same(record.ids, present, k) : 0);
    }
  }

  void put_row_weights(std::int64_t record) noexcept {
    float* out = place_.row_weights + (record - begin_) * context_.top_k();
    const std::int32_t* rows = routes_of(record).rows;
    const auto* first =
        std::find_if(rows, rows + context_.top_k(), [](std::int32_t row) { return row >= 0; });
    for (int k = 0; k < context_.top_k(); ++k) {
      out[k] = 0.0F;
      if (rows[k] >= 0) {
        std::memcpy(&out[k], row_weights_.row(*first) + k * row_weights_.element_stride(),
                    sizeof(float));
      }
    }
    count_bytes(sizeof(float) * static_cast<std::size_t>(context_.top_k()));
  }

  // Staged rows of this node are counted by who reads them.
  void count_row() noexcept {
    if (context_.throughput() && context_.together(home_)) return;
    count_bytes(context_.config.window.combine_row_bytes);
  }

  void count_bytes(std::size_t bytes) noexcept {
    if (home_ == context_.rank()) return;
    context_.statistics.combine_wire_bytes += static_cast<std::int64_t>(bytes);
  }

  Context& context_;
  const CombineSend& request_;
  std::uint64_t epoch_;
  bool given_weights_;  // Weights came with this combine, not with the dispatch.
  const HandleArrays& handle_;
  ResultRows y_;
  RowGrid row_weights_;
  int home_;
  int bank_;
  std::int64_t begin_;  // Records of this home.
  std::int64_t end_;
  AnswerPlace place_;
  SumTarget target_;
  int slot_ = 0;
  std::array<PartialSum, 2> sums_;
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
  NodeHeads heads(context, operation.epoch, /*weights=*/true, operation.headers);
  if (!operation.request.refused) {
    const HandleArrays handle(context.handle_layout, operation.request.handle.data());
    for (int token = 0; token < operation.tokens; ++token) {
      const std::size_t first = static_cast<std::size_t>(token) * top_k;
      const routing::Destinations destinations(handle.topk_ids + first, context.top_k(),
                                               context.config.map);
      heads.add(token, handle.topk_ids + first, &operation.weights[first], destinations);
      for (const routing::Destination& to : destinations) {
        const int record = operation.next_slot[static_cast<std::size_t>(to.rank)]++;
        if (context.suspects.contains(to.rank) || !context.together(to.rank)) continue;
        window::write_weights(context.lanes.given_weights_out(to.rank, bank, record),
                              context.top_k(), &operation.weights[first], to.mask);
        if (to.rank != context.rank()) {
          context.statistics.combine_wire_bytes += static_cast<std::int64_t>(top_k * sizeof(float));
        }
      }
    }
  }
  heads.publish(operation.content, operation.next_slot, /*row_bytes=*/0, /*known=*/false);
  for (int step = 1; step <= context.ranks(); ++step) {
    const int peer = (context.rank() + step) % context.ranks();
    if (context.suspects.contains(peer) || !context.together(peer)) continue;
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

ResultRows results_of(const CombineOperation& operation) noexcept {
  const CombineSend& request = operation.request;
  ResultRows rows;
  rows.grid = RowGrid(request.y);
  rows.dtype = request.y.dtype;
  rows.rank_major = layout_of(request) == Layout::rank_major;
  rows.weighted = !rows.rank_major && !request.plain_sum;
  return rows;
}

bool usable_in_place(const CombineOperation& operation) noexcept {
  return operation.request.reduce != Reduce::single ||
         operation.request.y.dtype == combine_dtype(operation);
}

namespace {

// What the relay needs to know of the records for a home on another node.
void write_answer_head(const Context& context, const CombineOperation& operation, int home,
                       const AnswerPlace& place, const protocol::CellContent& content) {
  const window::RelayLayout& layout = context.relay->site().own();
  const bool by_node = operation.request.reduce == Reduce::node;
  window::AnswerHead head;
  head.epoch = operation.epoch;
  head.slots = content.records;
  head.contents = 1;
  head.row_bytes = static_cast<std::uint32_t>(
      codec::row_bytes({operation.request.codec, ScaleForm::f32, 128}, context.hidden()));
  head.by_node = by_node ? 1 : 0;
  std::memcpy(place.answer, &head, sizeof(head));
  protocol::Cell cell{};
  cell.content = content;
  std::memcpy(place.answer + layout.answer_content(), &cell, sizeof(cell));
  if (!by_node || content.records == 0) return;
  const HandleArrays handle(context.handle_layout, operation.request.handle.data());
  std::copy_n(handle.record_token + handle.source_offsets[home], content.records,
              reinterpret_cast<std::int32_t*>(place.answer + layout.answer_tokens()));
}

}  // namespace

void answer_homes(Context& context, CombineOperation& operation) {
  const numeric::FloatEnvironment environment;
  const CombineSend& request = operation.request;
  const Exchange exchange = exchange_of(operation);

  // What homes can read where it is, and as it is, they sum themselves: nothing is staged.
  std::uint64_t y_offset = 0;
  const bool in_place =
      !request.refused && context.config.options.y_memory == YMemory::registered &&
      usable_in_place(operation) &&
      registered_offset(context.heaps.base(context.rank()), context.heaps.bytes(context.rank()),
                        request.y, &y_offset);
  operation.zero_copy = in_place;

  for (int step = 1; step <= context.ranks(); ++step) {
    const int home = (context.rank() + step) % context.ranks();
    if (context.suspects.contains(home)) continue;
    const bool near = context.together(home);
    const AnswerPlace place = place_for(context, operation.epoch, home);
    protocol::CellContent content = operation.content;
    if (!request.refused) {
      const HandleArrays handle(context.handle_layout, request.handle.data());
      if (!operation.served.contains(home)) {
        content.flags |= cell_flags::kNothing;
      } else {
        HomeAnswer answer(context, operation, handle, home, place);
        // This rank's own tokens need no one's permission to read y.
        const bool own = home == context.rank() && usable_in_place(operation);
        content.records = answer.form((in_place && near) || own);
        content.row_offset = place.row_offset;
        content.row_stride = context.layout.combine_row_stride();
        if (in_place && near) {
          content.flags |= cell_flags::kRegistered;
          content.row_offset = y_offset;
          content.row_stride = static_cast<std::uint64_t>(RowGrid(request.y).row_stride());
          content.row_dtype = static_cast<std::uint8_t>(request.y.dtype);
        }
      }
    }
    if (near) {
      publish_cell(context, exchange, home, CellKind::combine, content);
    } else {
      write_answer_head(context, operation, home, place, content);
    }
  }
  if (context.relay != nullptr) context.relay->publish(CellKind::combine, operation.epoch);
}

void send_combine(Context& context, CombineOperation& operation) {
  const CombineSend& request = operation.request;
  operation.wait_ns = 0;
  operation.zero_copy = false;
  take_weights(context, operation);
  operation.weights_phase = request.weights.given() && request.reduce != Reduce::single &&
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
