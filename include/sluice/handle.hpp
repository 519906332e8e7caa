// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/export.hpp"
#include "sluice/report.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice {

/// The routing of one dispatch, as data: a view of `Communicator::handle_bytes()` bytes that
/// combine and cached dispatches read. It holds no host state: copy the bytes anywhere (64-byte
/// aligned) and a Handle of the copy is as good. Any number may live. When the library owns the
/// memory, the Handle keeps it alive.
///
/// Views returned below point into the handle's memory and live as long as it does. A handle on a GPU
/// (Device::cuda) is filled when its stream has come that far: wait for the stream before the getters
/// below, which copy what they need from there and are not for the data path.
class SLUICE_API Handle {
 public:
  Handle() = default;
  /// A view of a caller's memory, `bytes` large, that a dispatch filled or will fill. `device` is
  /// where it lies: that of the communicator.
  Handle(void* data, std::size_t bytes, Device device = Device::cpu) noexcept
      : data_(data), bytes_(bytes), device_(device) {}
  /// Likewise, with shared ownership.
  Handle(std::shared_ptr<void> owner, std::size_t bytes, Device device = Device::cpu) noexcept
      : owner_(std::move(owner)), data_(owner_.get()), bytes_(bytes), device_(device) {}

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  bool given() const noexcept { return data_ != nullptr; }
  Device device() const noexcept { return device_; }
  /// Whether this keeps its memory alive.
  bool keeps() const noexcept { return owner_ != nullptr; }

  /// Whether the bytes are a filled handle; the getters below need that.
  bool valid() const noexcept;
  /// Marked by a refused dispatch: combine with it ignores y and answers nothing.
  bool refused() const noexcept;
  Layout layout() const noexcept;
  /// Tokens that this rank dispatched (T).
  std::int64_t tokens() const noexcept;
  /// Routing of this rank's tokens as used: i32 [T, K], -1 where masked, skipped or bad.
  ConstTensorView topk_ids() const noexcept;
  /// f32 [T, K]; 1 where the dispatch was given no weights.
  ConstTensorView topk_weights() const noexcept;

  /// True number of rows per local expert, i32 [L], overflow included.
  ConstTensorView counts() const noexcept;
  /// counts rounded up to the expert alignment, i32 [L].
  ConstTensorView aligned_counts() const noexcept;
  /// First row of every local expert, i64 [L + 1]; the last entry is the end of the last segment.
  /// In rank_major, where rows are not grouped by expert: the running sum of counts.
  ConstTensorView offsets() const noexcept;
  /// Rows of the received tensor: records (rank_major) or offsets[L] (expert_major), at most the
  /// capacity; L * slab_rows (expert_slab).
  std::int64_t rows() const noexcept;

  /// Records received, one per (token, this rank), in order (source rank, token): the rows of
  /// rank_major. All of the following have one entry per record.
  std::int64_t records() const noexcept;
  /// First record of every source rank, i64 [R + 1].
  ConstTensorView source_offsets() const noexcept;
  /// Source rank and source token, i32 [records]; rank -1 for a source that was lost after its rows
  /// had been numbered, in the dispatch that filled the handle.
  ConstTensorView record_rank() const noexcept;
  ConstTensorView record_token() const noexcept;
  /// Local expert of route k, i32 [records, K]; -1 where the route is not on this rank.
  ConstTensorView local_ids() const noexcept;
  /// Weight of route k, f32 [records, K]; 0 where the route is not on this rank.
  ConstTensorView local_weights() const noexcept;
  /// Row of route k, i32 [records, K]: a row number, or kRowAbsent, kRowDuplicate, kRowOverflow.
  /// rank_major: the record's own row at every route of this rank.
  ConstTensorView route_rows() const noexcept;

  static constexpr std::int32_t kRowAbsent = -1;  ///< Not a route of this rank.
  static constexpr std::int32_t kRowDuplicate =
      -2;  ///< The token's row for this expert is at a lower k.
  static constexpr std::int32_t kRowOverflow = -3;  ///< Numbered beyond the capacity: not stored.

  /// Fills `out`, i32 [rows, 3] in host memory wherever the handle lies, with (source rank, token, k) of every row;
  /// (-1, -1, -1) for padding, unused and lost rows. k is the lowest route of the token on that row. invalid_argument: no
  /// handle, or another tensor.
  Status row_sources(TensorView out) const;
  /// Fills `out`, i64 [L, R, 2], likewise in host memory, with the (first row, count) of every source rank within every
  /// local expert (expert layouts).
  Status source_segments(TensorView out) const;
  /// Report of the dispatch that filled this handle.
  Report report() const noexcept;

 private:
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_ = Device::cpu;
};

}  // namespace sluice
