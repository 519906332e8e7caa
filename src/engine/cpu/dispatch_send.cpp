// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstring>

#include "base/mutants.hpp"
#include "engine/cpu/context.hpp"
#include "engine/cpu/handle_writer.hpp"
#include "engine/cpu/handshake.hpp"
#include "engine/cpu/node_heads.hpp"
#include "engine/registered_rows.hpp"
#include "engine/row_grid.hpp"
#include "numeric/float_environment.hpp"
#include "protocol/epochs.hpp"
#include "routing/routes.hpp"
#include "window/dispatch_header.hpp"

/// dispatch, send half: encodes every token once into staging, from where the ranks of its experts
/// pull it, and writes one header per (token, rank) into their lanes. Rows that may be read in place
/// and travel as they are stay where they are. To other nodes the relay takes one record per (token,
/// node), from the same place.
namespace sluice::engine::cpu {
namespace {

namespace cell_flags = protocol::cell_flags;
using base::mutant;
using base::Mutant;

protocol::CellContent agreed_content(const Context& context, const DispatchSend& request) {
  protocol::CellContent content;
  content.flags = (request.refused ? cell_flags::kRefused : 0) |
                  (request.rows ? 0 : cell_flags::kNoRows) |
                  (request.cached.given() ? cell_flags::kCached : 0);
  content.mode = static_cast<std::uint8_t>(context.config.options.mode);
  content.layout = static_cast<std::uint8_t>(request.placement.layout);
  content.codec_kind = static_cast<std::uint8_t>(request.codec.kind);
  if (request.codec.kind == CodecKind::fp8) {
    content.codec_form = static_cast<std::uint8_t>(request.codec.scale_form);
    content.codec_group = static_cast<std::uint16_t>(request.codec.group);
  }
  content.capacity = request.placement.capacity;
  content.alignment = request.placement.alignment;
  if (request.cached.given() && !request.refused) {
    content.dispatch = HandleArrays(context.handle_layout, request.cached.data()).header->dispatch;
  }
  return content;
}

routing::Routes take_routes(Context& context, DispatchOperation& operation) {
  const DispatchSend& request = operation.request;
  operation.bad_routes = 0;
  operation.tokens = 0;
  if (request.refused) return {};
  if (request.cached.given()) {
    operation.tokens = static_cast<int>(request.cached.tokens());
    return {static_cast<const std::int32_t*>(request.cached.topk_ids().data),
            static_cast<const float*>(request.cached.topk_weights().data), operation.tokens,
            context.top_k()};
  }
  operation.tokens = static_cast<int>(request.topk_ids.shape[0]);
  operation.bad_routes = routing::normalise(request.topk_ids, request.topk_weights, request.mask,
                                            context.config.shape.experts, operation.ids.data(),
                                            operation.weights.data());
  return {operation.ids.data(), operation.weights.data(), operation.tokens, context.top_k()};
}

void write_header(const Context& context, std::byte* out, int token, const std::int32_t* ids,
                  const float* weights, std::uint32_t mask) noexcept {
  for (int k = 0; mutant(Mutant::foreign_ids_sent) && k < context.top_k(); ++k) {
    if (ids[k] >= 0) mask |= 1U << k;
  }
  window::write_dispatch_header(out, context.top_k(), token, weights, mask,
                                [&](int k) { return context.config.map.local_of(ids[k]); });
}

/// How the rows of one call become records.
class RowEncoder {
 public:
  RowEncoder(Context& context, const DispatchOperation& operation) noexcept
      : context_(context),
        operation_(operation),
        codec_(operation.request.codec),
        grid_(operation.request.x),
        scales_(operation.request.scales),
        hidden_(context.hidden()),
        row_bytes_(codec::row_bytes(codec_, hidden_)),
        record_bytes_(row_bytes_ + codec::scale_bytes(codec_, hidden_)) {}

  /// Whether records are x's rows as they are: encoded ones with their scales right behind them.
  bool verbatim() const noexcept {
    const ConstTensorView& x = operation_.request.x;
    const ConstTensorView& scales = operation_.request.scales;
    if (codec::row_dtype(codec_) != x.dtype || x.data == nullptr) return false;
    return codec_.kind != CodecKind::fp8 || scales_behind_rows(x, scales, row_bytes_);
  }
  const std::byte* row(int token) const noexcept { return grid_.row(token); }
  std::size_t record_bytes() const noexcept { return record_bytes_; }
  /// Where records are x's rows.
  ConstTensorView records() const noexcept {
    ConstTensorView records = operation_.request.x;
    records.shape[1] = static_cast<std::int64_t>(record_bytes_ / size_of(records.dtype));
    return records;
  }

  void encode(int token, std::byte* out) const {
    const trace::Span span(context_.timeline, trace::Phase::quantise, "dispatch", operation_.epoch);
    const DType source = operation_.request.x.dtype;
    if (source == DType::e4m3) {
      std::memcpy(out, row(token), row_bytes_);
      copy_scales(token, out + row_bytes_);
    } else if (codec_.kind == CodecKind::fp8) {
      context_.kernels.quantise(row(token), source, codec_, hidden_,
                                reinterpret_cast<std::uint8_t*>(out), out + row_bytes_);
    } else {
      context_.kernels.convert(row(token), source, out, codec::row_dtype(codec_), hidden_);
    }
  }

 private:
  void copy_scales(int token, std::byte* out) const noexcept {
    const std::byte* from = scales_.row(token);
    for (const std::byte* const end = out + (record_bytes_ - row_bytes_); out != end; out += 4) {
      std::memcpy(out, from, 4);
      from += scales_.element_stride();
    }
  }

  Context& context_;
  const DispatchOperation& operation_;
  Codec codec_;
  RowGrid grid_;
  RowGrid scales_;  // of an x that is encoded already
  int hidden_;
  std::size_t row_bytes_;
  std::size_t record_bytes_;
};

// The header of every record, into the lane at its target, or for its node: what readers number their
// rows from.
void put_headers(Context& context, DispatchOperation& operation, const routing::Routes& routes,
                 NodeHeads& heads) {
  const trace::Span span(context.timeline, trace::Phase::put, "dispatch", operation.epoch);
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);
  const bool cached = operation.request.cached.given();
  for (int token = 0; token < routes.tokens; ++token) {
    const std::int32_t* ids = routes.ids_of(token);
    const routing::Destinations destinations(ids, routes.top_k, context.config.map);
    heads.add(token, ids, routes.weights_of(token), destinations);
    for (const routing::Destination& to : destinations) {
      const int slot = operation.sent[static_cast<std::size_t>(to.rank)]++;
      if (cached || context.suspects.contains(to.rank) || !context.together(to.rank)) continue;
      write_header(context, context.lanes.dispatch_header_out(to.rank, bank, slot), token, ids,
                   routes.weights_of(token), to.mask);
      if (to.rank != context.rank()) {
        context.statistics.dispatch_wire_bytes +=
            static_cast<std::int64_t>(window::DispatchHeaderLayout::bytes(routes.top_k));
      }
    }
  }
}

// Returns the bytes of one record.
std::size_t stage_rows(Context& context, DispatchOperation& operation,
                       const routing::Routes& routes) {
  const DispatchSend& request = operation.request;
  const RowEncoder encoder(context, operation);
  protocol::CellContent& content = operation.content;
  if (context.reads_in_place() && encoder.verbatim() &&
      registered_offset(context.heaps.base(context.rank()), context.heaps.bytes(context.rank()),
                        encoder.records(), &content.row_offset)) {
    content.flags |= cell_flags::kRegistered;
    content.row_stride =
        static_cast<std::uint64_t>(request.x.strides[0]) * size_of(request.x.dtype);
    operation.zero_copy = true;
    return encoder.record_bytes();
  }
  const int stage = protocol::stage_of(operation.epoch, context.config.window.dispatch_stages);
  content.row_offset = context.layout.staged_dispatch_row(stage, 0);
  content.row_stride = context.layout.dispatch_row_stride();
  std::byte* const base = context.lanes.window(context.rank()) + content.row_offset;
  for (int token = 0; token < routes.tokens; ++token) {
    const std::int32_t* ids = routes.ids_of(token);
    if (std::all_of(ids, ids + routes.top_k, [](std::int32_t id) { return id < 0; })) continue;
    std::byte* out = base + static_cast<std::size_t>(token) * content.row_stride;
    if (!encoder.verbatim()) {
      encoder.encode(token, out);
    } else {
      const trace::Span span(context.timeline, trace::Phase::put, "dispatch", operation.epoch);
      std::memcpy(out, encoder.row(token), encoder.record_bytes());
    }
  }
  return encoder.record_bytes();
}

}  // namespace

void send_dispatch(Context& context, DispatchOperation& operation) {
  const numeric::FloatEnvironment environment;
  const DispatchSend& request = operation.request;
  operation.content = agreed_content(context, request);
  operation.zero_copy = false;
  operation.wait_ns = 0;
  std::fill(operation.sent.begin(), operation.sent.end(), 0);
  const routing::Routes routes = take_routes(context, operation);

  const Exchange exchange{protocol::Kind::dispatch, operation.epoch, request.timeout,
                          &operation.wait_ns};
  open_send(context, exchange);
  NodeHeads heads(context, operation.epoch, /*weights=*/false, operation.headers);
  std::size_t row_bytes = 0;
  const auto publish_all = [&] {
    heads.publish(operation.content, operation.sent, row_bytes, request.cached.given());
    for (int step = 1; step <= context.ranks(); ++step) {
      const int peer = (context.rank() + step) % context.ranks();
      if (context.suspects.contains(peer) || !context.together(peer)) continue;
      protocol::CellContent content = operation.content;
      content.records = operation.sent[static_cast<std::size_t>(peer)];
      publish_cell(context, exchange, peer, protocol::CellKind::dispatch, content);
    }
  };
  if (mutant(Mutant::cell_before_payload)) publish_all();
  if (!request.refused) {
    if (request.rows) row_bytes = stage_rows(context, operation, routes);
    put_headers(context, operation, routes, heads);
  }
  if (!mutant(Mutant::cell_before_payload)) publish_all();
}

}  // namespace sluice::engine::cpu
