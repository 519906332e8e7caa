// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/mutants.hpp"
#include "engine/cpu/context.hpp"
#include "engine/cpu/handle_writer.hpp"
#include "engine/cpu/handshake.hpp"
#include "engine/cpu/streaming.hpp"
#include "engine/receive_buffers.hpp"
#include "engine/row_grid.hpp"
#include "protocol/epochs.hpp"

/// dispatch, receive half: waits for every rank's cell, numbers the rows from the records' headers,
/// and copies every record from its source's memory to its row or rows.
namespace sluice::engine::cpu {
namespace {

using protocol::CellKind;

/// Moves the records of all sources to their rows.
class RowPlacer {
 public:
  RowPlacer(Context& context, const Exchange& exchange, const DispatchOperation& operation,
            const HandleArrays& handle, const ReceiveBuffers& buffers)
      : context_(context),
        exchange_(exchange),
        handle_(handle),
        rows_(buffers.rows),
        row_bytes_(codec::row_bytes(operation.request.codec, context.hidden())),
        scale_words_(codec::scale_bytes(operation.request.codec, context.hidden()) / 4),
        bank_(protocol::bank_of(operation.epoch, context.config.window.banks)) {
    if (scale_words_ > 0) scales_ = RowGrid(buffers.scales);
    if (operation.request.codec.scale_form == ScaleForm::ue8m0) {
      unused_scale_bytes_ = scale_words_ * 4 - static_cast<std::size_t>(codec::scale_count(
                                                   operation.request.codec, context.hidden()));
    }
    streaming_ = worth_streaming(row_bytes_ * stored_rows(handle));
  }

  /// Records of `source`, in order; `answered`: else their rows are zeroed. False: the source, of
  /// another node, was given up while its rows were awaited.
  bool place(int source, bool answered) {
    std::uint32_t landed = context_.together(source) ? UINT32_MAX : 0;
    const std::int64_t begin = handle_.source_offsets[source];
    const std::int64_t end = handle_.source_offsets[source + 1];
    const Rows from = rows_of(source);
    for (std::int64_t record = begin; record < end; ++record) {
      const int count = targets_of(record);
      if (count == 0) continue;
      if (!answered) {
        if (!base::mutant(base::Mutant::lost_rows_not_zeroed)) zero(count);
        continue;
      }
      const auto token = static_cast<std::uint32_t>(handle_.record_token[record]);
      if (token >= landed) landed = await_rows(context_, exchange_, source, token + 1);
      if (landed == 0) return false;
      copy(from.base + std::uint64_t{token} * from.stride, count);
      if (source != context_.rank()) {
        context_.statistics.dispatch_wire_bytes +=
            static_cast<std::int64_t>(row_bytes_ + scale_words_ * 4);
      }
    }
    return true;
  }

  void zero_row(std::int64_t row) {
    row_targets_[0] = rows_.row(row);
    if (scale_words_ > 0) scale_targets_[0] = scales_.row(row);
    zero(1);
  }

 private:
  static std::size_t stored_rows(const HandleArrays& handle) noexcept {
    if (handle.layout() == Layout::rank_major) return static_cast<std::size_t>(handle.header->rows);
    std::int64_t rows = 0;
    for (int i = 0; i < handle.header->local_experts; ++i) rows += handle.counts[i];
    return static_cast<std::size_t>(rows);
  }

  struct Rows {
    const std::byte* base = nullptr;
    std::uint64_t stride = 0;
  };

  Rows rows_of(int source) const noexcept {
    const auto& cell = context_.lanes.cell_in(source, CellKind::dispatch, bank_).content;
    const bool registered = (cell.flags & protocol::cell_flags::kRegistered) != 0;
    const int owner = context_.together(source) ? source : context_.forwarder(source);
    const std::byte* base = registered ? context_.heaps.base(owner) : context_.lanes.window(owner);
    return {base + cell.row_offset, cell.row_stride};
  }

  int targets_of(std::int64_t record) noexcept {
    const std::int32_t* rows = handle_.route_rows + record * context_.top_k();
    int count = 0;
    for (int k = 0; k < context_.top_k(); ++k) {
      if (rows[k] < 0) continue;
      auto& target = row_targets_[static_cast<std::size_t>(count)];
      target = rows_.row(rows[k]);
      if (scale_words_ > 0) scale_targets_[static_cast<std::size_t>(count)] = scales_.row(rows[k]);
      ++count;
      if (handle_.layout() == Layout::rank_major) break;  // One row, whatever the number of routes.
    }
    return count;
  }

  void copy(const std::byte* record, int count) {
    context_.kernels.fan_out(record, row_bytes_, row_targets_.data(), count, streaming_);
    if (base::mutant(base::Mutant::scales_not_copied)) return;
    if (scale_words_ > 0) write_scales(record + row_bytes_, count);
  }

  void write_scales(const std::byte* scales, int count) {
    for (int i = 0; i < count; ++i) {
      auto* out = static_cast<std::byte*>(scale_targets_[static_cast<std::size_t>(i)]);
      if (scales_.element_stride() == 4) {
        std::memcpy(out, scales, scale_words_ * 4);
      } else {
        for (std::size_t word = 0; word < scale_words_; ++word) {
          std::memcpy(scale_word(out, word), scales + word * 4, 4);
        }
      }
      // Of an x that was given encoded they may be anything.
      if (unused_scale_bytes_ == 0) continue;
      std::memset(scale_word(out, scale_words_ - 1) + (4 - unused_scale_bytes_), 0,
                  unused_scale_bytes_);
    }
  }
  std::byte* scale_word(std::byte* row, std::size_t word) const noexcept {
    return row + static_cast<std::ptrdiff_t>(word) * scales_.element_stride();
  }

  void zero(int count) {
    static constexpr std::array<std::byte, 4 * kMaxHidden / 32> kZeroScales{};
    for (int i = 0; i < count; ++i) {
      std::memset(row_targets_[static_cast<std::size_t>(i)], 0, row_bytes_);
    }
    if (scale_words_ > 0) write_scales(kZeroScales.data(), count);
  }

  Context& context_;
  const Exchange& exchange_;
  const HandleArrays& handle_;
  RowGrid rows_;
  RowGrid scales_;
  std::size_t row_bytes_;
  std::size_t scale_words_;
  std::size_t unused_scale_bytes_ = 0;  // ue8m0: of the last word
  int bank_;
  bool streaming_ = false;
  std::array<void*, kMaxTopk> row_targets_{};
  std::array<void*, kMaxTopk> scale_targets_{};
};

void zero_padding(const HandleArrays& handle, const ReceiveBuffers& buffers, RowPlacer& placer) {
  const auto experts = static_cast<std::int64_t>(handle.header->local_experts);
  const std::int64_t tensor_rows = buffers.rows.dims == 3
                                       ? buffers.rows.shape[0] * buffers.rows.shape[1]
                                       : buffers.rows.shape[0];
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < std::min(end, tensor_rows); ++row) placer.zero_row(row);
  };
  if (handle.layout() != Layout::rank_major) {
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      zero(handle.offsets[expert] + handle.counts[expert],
           std::min(handle.offsets[expert + 1], handle.header->rows));
    }
  }
  zero(handle.header->rows, tensor_rows);
}

void count_statistics(Context& context, const HandleArrays& handle) {
  ++context.statistics.dispatches;
  for (std::size_t expert = 0; expert < context.statistics.rows_per_expert_step.size(); ++expert) {
    context.statistics.rows_per_expert_step[expert] = handle.counts[expert];
    context.statistics.rows_per_expert_total[expert] += handle.counts[expert];
  }
}

// A cached dispatch reads the routing of its handle (or of a copy, in memory that the caller gave);
// its own report is in Received only.
Handle handle_of(Context& context, const DispatchOperation& operation,
                 const DispatchOutputs& outputs) {
  const Handle& cached = operation.request.cached;
  if (cached.given() && !operation.request.refused) {
    if (!outputs.handle.given() || outputs.handle.data() == cached.data()) return cached;
    std::memcpy(outputs.handle.data(), cached.data(), context.handle_layout.bytes);
    return outputs.handle;
  }
  if (outputs.handle.given()) return outputs.handle;
  std::shared_ptr<void> memory = context.handle_buffers.take(context.handle_layout.bytes);
  return memory == nullptr ? Handle() : Handle(std::move(memory), context.handle_layout.bytes);
}

// Copies the rows of the accepted sources and zeroes those of others. Returns sources whose rows
// may have changed while they were copied, or did not come: theirs are zeroed too.
RankSet place_rows(Context& context, const Exchange& exchange, const DispatchOperation& operation,
                   const HandleArrays& handle, const RankSet& accepted,
                   const ReceiveBuffers& buffers, bool pad) {
  const trace::Span span(context.timeline, trace::Phase::place, "dispatch", operation.epoch);
  RowPlacer placer(context, exchange, operation, handle, buffers);
  RankSet unfinished;
  for (const bool near : {true, false}) {  // Rows of other nodes arrive in the meantime.
    for (int step = 0; step < context.ranks(); ++step) {
      const int source = (context.rank() + 1 + step) % context.ranks();
      if (context.together(source) != near) continue;
      if (!placer.place(source, accepted.contains(source))) unfinished.insert(source);
    }
  }
  RankSet lost = look_back(context, accepted);
  for (int source = 0; source < context.ranks(); ++source) {
    if (unfinished.contains(source)) lost.insert(source);
    if (lost.contains(source)) placer.place(source, /*answered=*/false);
  }
  if (pad) zero_padding(handle, buffers, placer);
  context.kernels.finish_streaming();
  return lost;
}

// A source that was lost after its rows had been numbered: they keep their numbers, without a
// source.
void drop_source(const HandleArrays& handle, int source) {
  handle.header->accepted.erase(source);
  std::fill(handle.record_rank + handle.source_offsets[source],
            handle.record_rank + handle.source_offsets[source + 1], -1);
}

}  // namespace

Received receive_dispatch(Context& context, DispatchOperation& operation,
                          const DispatchOutputs& outputs, Status status) {
  const DispatchSend& request = operation.request;
  const Exchange exchange{protocol::Kind::dispatch, operation.epoch, request.timeout,
                          &operation.wait_ns};
  const bool cached = request.cached.given() && !request.refused;
  const int bank = protocol::bank_of(operation.epoch, context.config.window.banks);

  Received received;
  received.status = std::move(status);
  received.handle = handle_of(context, operation, outputs);
  received.report.bad_routes = operation.bad_routes;
  received.report.missing = await_cells(context, exchange, CellKind::dispatch);
  if (!received.handle.given()) {
    close_receive(context, exchange, operation.zero_copy);
    if (received.status.ok()) {
      received.status = {StatusCode::out_of_memory, "no memory for the handle"};
    }
    return received;
  }
  HandleArrays handle(context.handle_layout, received.handle.data());

  Verdict verdict;
  if (request.refused) {
    // What peers sent is drained and dropped; the handle says so to combine.
    write_refused(context, operation, handle);
  } else {
    std::vector<std::int32_t>& expected = operation.sent;  // Not needed any more.
    if (cached) {
      for (int source = 0; source < context.ranks(); ++source) {
        expected[static_cast<std::size_t>(source)] = static_cast<std::int32_t>(
            handle.source_offsets[source + 1] - handle.source_offsets[source]);
      }
    }
    verdict =
        judge_cells(context, CellKind::dispatch, bank, operation.content, received.report.missing,
                    cached ? expected.data() : nullptr, context.config.tokens_max);
    received.report.refused = verdict.refused;
    received.report.mismatched = verdict.mismatched;
    if (!cached) write_records(context, operation, verdict.accepted, handle);
    received.report.overflow_rows = handle.header->report.overflow_rows;
    count_statistics(context, handle);
  }

  if (!request.refused && received.status.ok() && request.rows) {
    Result<ReceiveBuffers> buffers =
        resolve_buffers(outputs,
                        {request.placement, context.config.local_experts(), context.hidden(),
                         request.codec, handle.header->rows, Device::cpu},
                        [&](std::size_t bytes) { return context.row_buffers.take(bytes); });
    if (buffers) {
      const RankSet lost = place_rows(context, exchange, operation, handle, verdict.accepted,
                                      *buffers, outputs.zero_padding);
      for (int source = 0; source < context.ranks(); ++source) {
        if (!lost.contains(source)) continue;
        received.report.missing.insert(source);
        if (!cached) drop_source(handle, source);
      }
      received.rows = buffers->rows;
      received.scales = buffers->scales;
      received.owner = std::move(buffers->owner);
    } else {
      received.status = buffers.status();
    }
  }
  // The rows are dropped: as if this rank's experts had refused.
  if (!received.status.ok() && !cached) handle.header->refused = 1;
  if (received.status.ok() && verdict.first_mismatch >= 0) {
    received.status = mismatch_status(
        operation.content,
        context.lanes.cell_in(verdict.first_mismatch, CellKind::dispatch, bank).content,
        verdict.first_mismatch, "dispatch", operation.epoch);
  }
  close_receive(context, exchange, operation.zero_copy);
  received.report.wait_ns = operation.wait_ns;
  if (!cached) handle.header->report = received.report;
  return received;
}

}  // namespace sluice::engine::cpu
