// SPDX-License-Identifier: MIT
#include <fmt/core.h>

#include <algorithm>

#include "conformance/calls.hpp"
#include "conformance/rules.hpp"
#include "reference/small_float.hpp"
#include "support/compare.hpp"

namespace sluice::conformance {

using reference::at;
using support::expect_equal;
using support::expect_row;
using support::expect_true;
using support::expect_values;
using support::row_of;
using support::Tensor;

namespace {

bool all_zero(const std::byte* row, std::size_t count, std::size_t bytes, std::int64_t stride) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* element = row + static_cast<std::int64_t>(i * bytes) * stride;
    if (std::any_of(element, element + bytes, [](std::byte b) { return b != std::byte{0}; })) {
      return false;
    }
  }
  return true;
}

std::int64_t last_stride(const ConstTensorView& view) {
  return view.strides[static_cast<std::size_t>(view.dims - 1)];
}

std::int64_t tensor_rows(const ConstTensorView& view) {
  return view.dims == 3 ? view.shape[0] * view.shape[1] : view.shape[0];
}

}  // namespace

void DispatchCall::check() {
  findings_.set_context(context_);
  expect_true(findings_, kRefusal, "status: " + received_.status.to_string(),
              received_.status.ok());
  const Handle& handle = received_.handle;
  expect_true(findings_, kHandle, "the handle is not valid", handle.valid());
  if (!handle.valid() || !received_.status.ok()) return;
  expect_true(findings_, kHandle, "the handle is marked refused", !handle.refused());
  check_report();
  check_routes();
  check_counts();
  check_records();
  check_sources();
  if (!moves_rows_) return;
  check_rows();
  check_padding();
  check_given_memory();
}

void DispatchCall::check_report() {
  const Report& report = received_.report;
  expect_equal(findings_, kReport, "overflow_rows of the report in the caller's memory",
               report.overflow_rows, outputs_.report->overflow_rows);
  expect_true(findings_, kReport, "report.refused in the caller's memory",
              report.refused == outputs_.report->refused);
  expect_equal(findings_, kCapacity, "report.overflow_rows", rows_.overflow_rows,
               report.overflow_rows);
  expect_true(findings_, kReport, "report.missing is not empty", report.missing.empty());
  expect_true(findings_, kReport, "report.mismatched is not empty", report.mismatched.empty());
  expect_equal(findings_, kReport, "report.lost_routes of a dispatch", 0, report.lost_routes);
  for (int rank = 0; rank < problem_.ranks; ++rank) {
    const bool lost = !step_.spec.lost_ranks.empty() && step_.spec.lost_ranks[at(rank)];
    const bool refused_here = lost && problem_.inputs[at(rank)].topk_ids.empty();
    if (lost && !refused_here) continue;
    expect_equal(findings_, kRefusal, "report.refused names a rank", refused_here ? 1 : 0,
                 report.refused.contains(rank) ? 1 : 0);
  }
}

void DispatchCall::check_routes() {
  const Handle& handle = received_.handle;
  const reference::Routes& routes = expected_.routes[at(rank_)];
  // A dispatch along a handle reads no ids: whether it repeats their count is not said.
  if (!along_handle_) {
    expect_equal(findings_, kRoutes, "report.bad_routes", routes.bad_routes,
                 received_.report.bad_routes);
    expect_equal(findings_, kRoutes, "report.bad_routes of the handle", routes.bad_routes,
                 handle.report().bad_routes);
  }
  expect_equal(findings_, kHandle, "layout", static_cast<int>(problem_.layout),
               static_cast<int>(handle.layout()));
  expect_equal(findings_, kRoutes, "tokens", problem_.inputs[at(rank_)].tokens, handle.tokens());
  expect_values(findings_, kRoutes, "topk_ids", routes.ids, handle.topk_ids(), problem_.top_k);
  // The weight of a route that is not used is nobody's business.
  const ConstTensorView weights = handle.topk_weights();
  expect_equal(findings_, kRoutes, "rows of topk_weights", handle.tokens(), weights.shape[0]);
  for (std::size_t route = 0; route < routes.ids.size(); ++route) {
    if (routes.ids[route] < 0) continue;
    const auto top_k = at(problem_.top_k);
    const auto* seen = reinterpret_cast<const std::byte*>(
        static_cast<const float*>(weights.data) +
        static_cast<std::int64_t>(route / top_k) * weights.strides[0] +
        static_cast<std::int64_t>(route % top_k) * weights.strides[1]);
    if (!expect_row(findings_, kRoutes, fmt::format("topk_weights, route {}", route), DType::f32,
                    reinterpret_cast<const std::byte*>(&routes.weights[route]), seen, 1)) {
      return;
    }
  }
}

void DispatchCall::check_counts() {
  const Handle& handle = received_.handle;
  expect_values(findings_, kCounts, "counts", rows_.counts, handle.counts());
  expect_values(findings_, kCounts, "aligned_counts", rows_.aligned_counts,
                handle.aligned_counts());
  std::int64_t count = rows_.row_count;
  if (problem_.layout != Layout::expert_slab && problem_.capacity > 0) {
    count = std::min(count, problem_.capacity);
  }
  expect_equal(findings_, kCounts, "rows", count, handle.rows());
  if (!row_counts_seen_.empty()) {
    std::vector<std::int64_t> expected = {static_cast<std::int64_t>(received_.epoch), count};
    expected.insert(expected.end(), rows_.counts.begin(), rows_.counts.end());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_equal(findings_, kCounts, fmt::format("row_counts[{}]", i).c_str(), expected[i],
                   row_counts_seen_[i]);
    }
  }
  if (problem_.layout == Layout::rank_major) return;  // No segments of experts to begin anywhere.
  expect_values(findings_, kCounts, "offsets", rows_.offsets, handle.offsets());
}

void DispatchCall::check_records() {
  const Handle& handle = received_.handle;
  expect_equal(findings_, kRecords, "records", rows_.records(), handle.records());
  expect_values(findings_, kRecords, "source_offsets", rows_.source_offsets,
                handle.source_offsets());
  expect_values(findings_, kRecords, "record_rank", rows_.record_rank, handle.record_rank());
  expect_values(findings_, kRecords, "record_token", rows_.record_token, handle.record_token());
  expect_values(findings_, kRecords, "local_ids", rows_.local_ids, handle.local_ids(),
                problem_.top_k);
  expect_values(findings_, kRecords, "local_weights", rows_.local_weights, handle.local_weights(),
                problem_.top_k);
  expect_values(findings_, kRecords, "route_rows", rows_.route_rows, handle.route_rows(),
                problem_.top_k);
}

void DispatchCall::check_sources() {
  const Handle& handle = received_.handle;
  const std::int64_t count = handle.rows();
  std::vector<std::int32_t> expected(at(count) * 3, -1);
  for (const reference::Row& row : rows_.rows) {
    if (!row.stored) continue;
    if (row.number >= count) return;  // Said by check_counts().
    std::int32_t* entry = expected.data() + at(row.number) * 3;
    entry[0] = row.source;
    entry[1] = static_cast<std::int32_t>(row.token);
    entry[2] = row.k;
  }
  Tensor seen(DType::i32, {count, 3}, step_.spec.output_gap);
  TensorView view = seen.view();
  view.device = Device::cpu;
  Status status = handle.row_sources(view);
  expect_true(findings_, kRowOrder, "row_sources: " + status.to_string(), status.ok());
  if (status.ok()) {
    expect_values(findings_, kRowOrder, "row_sources", expected, seen.view(), 3);
  }
  if (problem_.layout == Layout::rank_major) return;
  const auto experts = static_cast<std::int64_t>(rows_.local_experts.size());
  std::vector<std::int64_t> memory(at(experts * problem_.ranks * 2), -7);
  status =
      handle.source_segments(TensorView(memory.data(), DType::i64, experts, problem_.ranks, 2));
  expect_true(findings_, kRowOrder, "source_segments: " + status.to_string(), status.ok());
  for (std::size_t i = 0; status.ok() && i < rows_.source_segments.size(); ++i) {
    const reference::Segment& segment = rows_.source_segments[i];
    expect_equal(findings_, kRowOrder, "source_segments, count", segment.count, memory[2 * i + 1]);
    if (segment.count == 0) continue;  // Where an empty segment begins is not said.
    expect_equal(findings_, kRowOrder, "source_segments, first row", segment.first_row,
                 memory[2 * i]);
  }
}

void DispatchCall::check_rows() {
  const ConstTensorView rows = received_.rows;
  const ConstTensorView scales = received_.scales;
  const DType dtype = reference::row_dtype(problem_.codec);
  const auto hidden = at(problem_.hidden);
  const bool scaled = problem_.codec.kind == CodecKind::fp8;
  const std::size_t words = reference::scale_words(problem_.codec, hidden);
  std::int64_t last = -1;
  for (const reference::Row& row : rows_.rows) last = row.stored ? row.number : last;
  if (last < 0) return;
  expect_equal(findings_, kCodecs, "dtype of rows", static_cast<int>(dtype),
               static_cast<int>(rows.dtype));
  expect_equal(findings_, kRowOrder, "dims of rows", problem_.layout == Layout::expert_slab ? 3 : 2,
               rows.dims);
  expect_true(findings_, kRowOrder, fmt::format("the tensor has fewer than {} rows", last + 1),
              rows.dims >= 2 && tensor_rows(rows) > last);
  if (rows.dtype != dtype || rows.dims < 2 || tensor_rows(rows) <= last) return;
  if (scaled) {
    const DType scale_dtype = reference::scale_dtype(problem_.codec);
    expect_equal(findings_, kCodecs, "dtype of scales", static_cast<int>(scale_dtype),
                 static_cast<int>(scales.dtype));
    const bool shaped = scales.dtype == scale_dtype && scales.dims == rows.dims &&
                        scales.shape[at(scales.dims - 1)] == static_cast<std::int64_t>(words);
    expect_true(findings_, kCodecs, fmt::format("scales have not {} words", words), shaped);
    if (!shaped) return;
  }
  for (const reference::Row& row : rows_.rows) {
    if (!row.stored) continue;
    const std::string name = fmt::format("row {} (source rank {}, token {}, k {})", row.number,
                                         row.source, row.token, row.k);
    const reference::EncodedRow& wanted = expected_.payload(row);
    if (!expect_row(findings_, kCodecs, name, dtype, wanted.elements.data(),
                    row_of(rows, row.number), hidden, last_stride(rows))) {
      return;
    }
    if (scaled &&
        !expect_row(findings_, kCodecs, name + ", scales", scales.dtype, wanted.scales.data(),
                    row_of(scales, row.number), words, last_stride(scales))) {
      return;
    }
  }
}

void DispatchCall::check_padding() {
  if (!step_.spec.zero_padding || !received_.rows.given()) return;
  const ConstTensorView rows = received_.rows;
  std::vector<bool> stored(at(tensor_rows(rows)), false);
  for (const reference::Row& row : rows_.rows) {
    if (row.stored && at(row.number) < stored.size()) stored[at(row.number)] = true;
  }
  for (std::size_t r = 0; r < stored.size(); ++r) {
    if (stored[r]) continue;
    const bool zero = all_zero(row_of(rows, static_cast<std::int64_t>(r)), at(problem_.hidden),
                               reference::bytes_of(rows.dtype), last_stride(rows));
    expect_true(findings_, kPadding, fmt::format("padding row {} is not zero", r), zero);
    if (!zero) return;
  }
}

// After the stored rows were compared they are poisoned again: then all memory must be poison.
void DispatchCall::check_given_memory() {
  if (step_.spec.rows_from == RowsFrom::allocator && rows_.row_count > 0) {
    expect_true(findings_, kMemory, "the allocator was not asked for rows",
                allocated_rows_ != nullptr);
    expect_true(findings_, kMemory, "rows are not where the allocator said",
                allocated_rows_ == received_.rows.data);
    if (problem_.codec.kind == CodecKind::fp8) {
      expect_true(findings_, kMemory, "scales are not where the allocator said",
                  allocated_scales_ != nullptr && allocated_scales_ == received_.scales.data);
    }
  }
  if (step_.spec.caller_handle) {
    // Along a handle the same rule has a test of its own: Handles.ACachedDispatchFillsGivenMemory.
    expect_true(findings_, kMemory, "the handle is not in the memory given",
                along_handle_ || received_.handle.data() == handle_tensor_.view().data);
    const auto* end =
        static_cast<const std::byte*>(handle_tensor_.view().data) + communicator_.handle_bytes();
    expect_true(findings_, kMemory, "bytes behind the handle's memory were written",
                std::all_of(end, end + 64, [](std::byte b) { return b == Tensor::kPoison; }));
  }
  if (step_.spec.rows_from != RowsFrom::caller) return;
  expect_true(findings_, kMemory, "rows are not in the memory given",
              received_.rows.data == rows_tensor_.view().data);
  for (Tensor* tensor : {&rows_tensor_, &scales_tensor_}) {
    if (!tensor->view().given()) continue;
    // The rows are poisoned in a copy: they are still needed.
    std::vector<std::byte> keep(tensor->bytes());
    auto* memory = static_cast<std::byte*>(tensor->view().data);
    std::copy_n(memory, keep.size(), keep.data());
    for (const reference::Row& row : rows_.rows) {
      if (row.stored) tensor->poison_row(row.number);
    }
    const std::size_t bytes = reference::bytes_of(tensor->view().dtype);
    for (std::int64_t r = 0; step_.spec.zero_padding && r < tensor->rows(); ++r) {
      if (all_zero(tensor->row(r), at(tensor->columns()), bytes, last_stride(tensor->view()))) {
        tensor->poison_row(r);
      }
    }
    const std::int64_t written = tensor->first_written();
    expect_true(findings_, step_.spec.output_gap > 0 ? kStrides : kPadding,
                fmt::format("{}: byte {} was written, and it belongs to no stored row",
                            tensor == &rows_tensor_ ? "rows" : "scales", written),
                written < 0);
    std::copy_n(keep.data(), keep.size(), memory);
  }
}

}  // namespace sluice::conformance
