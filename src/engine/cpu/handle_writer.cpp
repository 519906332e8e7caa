// SPDX-License-Identifier: MIT
#include "engine/cpu/handle_writer.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/epochs.hpp"
#include "routing/row_plan.hpp"

namespace sluice::engine::cpu {
namespace {

window::HandleHeader empty_header(const Context& context, const DispatchOperation& operation) {
  const routing::RowPlacement& placement = operation.request.placement;
  window::HandleHeader header;
  header.magic = window::kHandleMagic;
  header.fingerprint = context.config.fingerprint;
  header.dispatch = operation.epoch;
  header.ranks = context.ranks();
  header.rank = context.rank();
  header.top_k = context.top_k();
  header.local_experts = context.config.local_experts();
  header.max_tokens = context.config.tokens_max;
  header.layout = static_cast<std::uint8_t>(placement.layout);
  header.alignment = placement.alignment;
  header.capacity = placement.capacity;
  return header;
}

void read_header(const std::byte* header, int top_k, std::int32_t* token, std::int32_t* local_ids,
                 float* local_weights) noexcept {
  std::memcpy(token, header, sizeof(*token));
  std::memcpy(local_weights, header + window::DispatchHeaderLayout::weights_offset,
              sizeof(float) * static_cast<std::size_t>(top_k));
  const auto* ids = reinterpret_cast<const std::int16_t*>(
      header + window::DispatchHeaderLayout::ids_offset(top_k));
  for (int k = 0; k < top_k; ++k) local_ids[k] = ids[k];
}

template <typename T>
T* array_at(std::byte* base, std::size_t offset) noexcept {
  return reinterpret_cast<T*>(base + offset);
}

}  // namespace

HandleArrays::HandleArrays(const window::HandleLayout& layout, void* memory) noexcept {
  auto* const base = static_cast<std::byte*>(memory);
  header = reinterpret_cast<window::HandleHeader*>(base);
  topk_ids = array_at<std::int32_t>(base, layout.topk_ids);
  topk_weights = array_at<float>(base, layout.topk_weights);
  counts = array_at<std::int32_t>(base, layout.counts);
  aligned_counts = array_at<std::int32_t>(base, layout.aligned_counts);
  offsets = array_at<std::int64_t>(base, layout.offsets);
  source_offsets = array_at<std::int64_t>(base, layout.source_offsets);
  record_rank = array_at<std::int32_t>(base, layout.record_rank);
  record_token = array_at<std::int32_t>(base, layout.record_token);
  local_ids = array_at<std::int32_t>(base, layout.local_ids);
  local_weights = array_at<float>(base, layout.local_weights);
  route_rows = array_at<std::int32_t>(base, layout.route_rows);
}

void write_records(Context& context, const DispatchOperation& operation, const RankSet& accepted,
                   const HandleArrays& handle) {
  const trace::Span span(context.timeline, trace::Phase::count, "dispatch", operation.epoch);
  const auto top_k = static_cast<std::size_t>(context.top_k());
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);
  const routing::RowPlacement& placement = operation.request.placement;

  *handle.header = empty_header(context, operation);
  handle.header->tokens = operation.tokens;
  handle.header->weights_given = operation.request.topk_weights.given() ? 1 : 0;
  handle.header->accepted = accepted;
  const std::size_t routes = static_cast<std::size_t>(operation.tokens) * top_k;
  std::copy_n(operation.ids.data(), routes, handle.topk_ids);
  std::copy_n(operation.weights.data(), routes, handle.topk_weights);

  std::int64_t record = 0;
  for (int source = 0; source < context.ranks(); ++source) {
    handle.source_offsets[source] = record;
    if (!accepted.contains(source)) continue;
    const int records =
        context.lanes.cell_in(source, protocol::CellKind::dispatch, bank).content.records;
    for (int slot = 0; slot < records; ++slot, ++record) {
      const auto first_route = static_cast<std::size_t>(record) * top_k;
      handle.record_rank[record] = source;
      read_header(context.lanes.dispatch_header_in(source, bank, slot), context.top_k(),
                  &handle.record_token[record], handle.local_ids + first_route,
                  handle.local_weights + first_route);
    }
  }
  handle.source_offsets[context.ranks()] = record;
  handle.header->records = record;

  const auto experts = static_cast<std::size_t>(context.config.local_experts());
  routing::RowPlan plan;
  plan.records = record;
  plan.top_k = context.top_k();
  plan.local_ids = handle.local_ids;
  plan.counts = {handle.counts, experts};
  plan.aligned_counts = {handle.aligned_counts, experts};
  plan.offsets = {handle.offsets, experts + 1};
  plan.route_rows = handle.route_rows;
  const routing::RowTotals totals = routing::plan_rows(placement, plan);
  handle.header->rows = totals.rows;
  handle.header->report.overflow_rows = totals.overflow;
}

void write_refused(Context& context, const DispatchOperation& operation,
                   const HandleArrays& handle) {
  *handle.header = empty_header(context, operation);
  handle.header->refused = 1;
  const int experts = context.config.local_experts();
  std::fill_n(handle.counts, experts, 0);
  std::fill_n(handle.aligned_counts, experts, 0);
  std::fill_n(handle.offsets, experts + 1, 0);
  std::fill_n(handle.source_offsets, context.ranks() + 1, 0);
}

}  // namespace sluice::engine::cpu
