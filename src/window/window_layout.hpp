// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/cell.hpp"

/// The bytes of one rank's window, one source for host and device.
///
///   window         := lane[R] staging
///   lane           := signals dispatch_bank[B] combine_bank[B]    (lane j: written by rank j only)
///   signals        := told[2] accusation cell[kinds][B]
///   dispatch_bank  := dispatch_header[S]
///   combine_bank   := given_weights[S][K] combine_mask[C] row_weights[S][K] route_rows[S][K]
///                     combine_row[C]
///   staging        := dispatch_stage[Sd] combine_stage[Sc]        (written by its owner only)
///   dispatch_stage := dispatch_row[S]
///   combine_stage  := (combine_row[C])[R]
///
/// S = slot_tokens (latency) or M (throughput). C = S, times min(K, max L) if `single` may be used.
/// Rows of a dispatch lie in stages, those of a combine in stages or, if it has none, in lanes. route_rows
/// are there if results may be read in place.
/// A dispatch_row is an encoded row followed by its scales, padded to kRowAlignment.
namespace sluice::window {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kRowAlignment = 128;
inline constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

/// What the layout depends on. Equal on all ranks.
struct WindowShape {
  int ranks = 0;
  int top_k = 0;
  int banks = 0;                       // B
  int dispatch_stages = 0;             // Sd
  int combine_stages = 0;              // Sc; 0: rows are pushed into lanes
  int tokens = 0;                      // S: the most tokens that a source sends in one operation
  int combine_rows_per_token = 1;      // 1, or min(K, max L) when `single` is permitted
  bool results_in_place = false;       // homes may read registered y: they get its row numbers
  std::size_t dispatch_row_bytes = 0;  // encoded row and scales, not padded
  std::size_t combine_row_bytes = 0;
};

/// What travels with every dispatched row: its source token, and for each of the token's routes the
/// local expert on the reader's rank (-1 elsewhere) and the weight (0 elsewhere).
struct DispatchHeaderLayout {
  // header := token:i32 weight:f32[K] local_id:i16[K], padded to 16 bytes
  static constexpr std::size_t weights_offset = sizeof(std::int32_t);
  static constexpr std::size_t ids_offset(int top_k) noexcept {
    return weights_offset + sizeof(float) * static_cast<std::size_t>(top_k);
  }
  static constexpr std::size_t bytes(int top_k) noexcept {
    return round_up(ids_offset(top_k) + sizeof(std::int16_t) * static_cast<std::size_t>(top_k), 16);
  }
};

class WindowLayout {
 public:
  WindowLayout() = default;
  explicit constexpr WindowLayout(const WindowShape& shape) noexcept;

  constexpr const WindowShape& shape() const noexcept { return shape_; }
  /// Bytes of the whole window, whole pages.
  constexpr std::size_t bytes() const noexcept { return bytes_; }

  // Offsets from the window's base.
  constexpr std::size_t lane(int peer) const noexcept { return index(peer) * lane_bytes_; }
  constexpr std::size_t told(int peer, protocol::Kind kind) const noexcept {
    return lane(peer) + index(static_cast<int>(kind)) * kLineBytes;
  }
  constexpr std::size_t accusation(int peer) const noexcept {
    return lane(peer) + index(protocol::kKinds) * kLineBytes;
  }
  /// In worlds of several nodes, beside its accusation: the beats of a rank of another node, and
  /// whether a rank is gone (relay::kGivenUp, kSettled). Written by who serves it here, and by this
  /// rank's relay.
  constexpr std::size_t beats(int peer) const noexcept {
    return accusation(peer) + sizeof(std::uint64_t);
  }
  constexpr std::size_t gone(int peer) const noexcept {
    return accusation(peer) + 2 * sizeof(std::uint64_t);
  }
  constexpr std::size_t cell(int peer, protocol::CellKind kind, int bank) const noexcept {
    return lane(peer) + cells_offset_ +
           (index(static_cast<int>(kind)) * index(shape_.banks) + index(bank)) *
               sizeof(protocol::Cell);
  }
  constexpr std::size_t dispatch_header(int peer, int bank, int slot) const noexcept {
    return dispatch_bank(peer, bank) + index(slot) * dispatch_header_bytes_;
  }
  constexpr std::size_t given_weights(int peer, int bank, int record) const noexcept {
    return combine_bank(peer, bank) + index(record) * weights_bytes();
  }
  constexpr std::size_t combine_mask(int peer, int bank, int slot) const noexcept {
    return combine_bank(peer, bank) + masks_offset_ + index(slot) * sizeof(std::uint32_t);
  }
  constexpr std::size_t row_weights(int peer, int bank, int record) const noexcept {
    return combine_bank(peer, bank) + row_weights_offset_ + index(record) * weights_bytes();
  }
  constexpr std::size_t route_rows(int peer, int bank, int record) const noexcept {
    return combine_bank(peer, bank) + route_rows_offset_ + index(record) * route_rows_bytes();
  }
  constexpr std::size_t combine_row(int peer, int bank, int slot) const noexcept {
    return combine_bank(peer, bank) + combine_rows_offset_ + index(slot) * combine_row_stride_;
  }
  constexpr std::size_t staged_dispatch_row(int stage, int token) const noexcept {
    return staging_offset_ + index(stage) * dispatch_stage_bytes_ +
           index(token) * dispatch_row_stride_;
  }
  /// Row `slot` of what is staged for `home`.
  constexpr std::size_t staged_combine_row(int stage, int home, int slot) const noexcept {
    return staging_offset_ + dispatch_staging_bytes() +
           (index(stage) * index(shape_.ranks) + index(home)) * combine_stage_home_bytes_ +
           index(slot) * combine_row_stride_;
  }

  constexpr int combine_slots() const noexcept {
    return shape_.tokens * shape_.combine_rows_per_token;
  }
  constexpr std::size_t dispatch_row_stride() const noexcept { return dispatch_row_stride_; }
  constexpr std::size_t combine_row_stride() const noexcept { return combine_row_stride_; }

  // The account of `sluice size`: everything below, rounded up to pages, is bytes().
  constexpr std::size_t signal_bytes() const noexcept { return index(shape_.ranks) * cells_end_; }
  constexpr std::size_t dispatch_metadata_bytes() const noexcept {
    return all_banks() * dispatch_bank_bytes_;
  }
  constexpr std::size_t combine_metadata_bytes() const noexcept {
    return all_banks() * combine_rows_offset_;
  }
  constexpr std::size_t combine_slot_bytes() const noexcept {
    return all_banks() * (combine_bank_bytes_ - combine_rows_offset_);
  }
  constexpr std::size_t dispatch_staging_bytes() const noexcept {
    return index(shape_.dispatch_stages) * dispatch_stage_bytes_;
  }
  constexpr std::size_t combine_staging_bytes() const noexcept {
    return index(shape_.combine_stages) * index(shape_.ranks) * combine_stage_home_bytes_;
  }

 private:
  static constexpr std::size_t index(int value) noexcept { return static_cast<std::size_t>(value); }
  constexpr std::size_t weights_bytes() const noexcept {
    return index(shape_.top_k) * sizeof(float);
  }
  constexpr std::size_t route_rows_bytes() const noexcept {
    return index(shape_.top_k) * sizeof(std::int32_t);
  }
  constexpr std::size_t all_banks() const noexcept {
    return index(shape_.ranks) * index(shape_.banks);
  }
  constexpr std::size_t dispatch_bank(int peer, int bank) const noexcept {
    return lane(peer) + cells_end_ + index(bank) * dispatch_bank_bytes_;
  }
  constexpr std::size_t combine_bank(int peer, int bank) const noexcept {
    return lane(peer) + cells_end_ + index(shape_.banks) * dispatch_bank_bytes_ +
           index(bank) * combine_bank_bytes_;
  }

  WindowShape shape_;
  std::size_t cells_offset_ = 0;  // within a lane
  std::size_t cells_end_ = 0;
  std::size_t dispatch_header_bytes_ = 0;
  std::size_t dispatch_row_stride_ = 0;
  std::size_t dispatch_bank_bytes_ = 0;
  std::size_t masks_offset_ = 0;  // within a combine bank
  std::size_t row_weights_offset_ = 0;
  std::size_t route_rows_offset_ = 0;
  std::size_t combine_rows_offset_ = 0;
  std::size_t combine_row_stride_ = 0;
  std::size_t combine_bank_bytes_ = 0;
  std::size_t lane_bytes_ = 0;
  std::size_t staging_offset_ = 0;
  std::size_t dispatch_stage_bytes_ = 0;
  std::size_t combine_stage_home_bytes_ = 0;
  std::size_t bytes_ = 0;
};

constexpr WindowLayout::WindowLayout(const WindowShape& shape) noexcept : shape_(shape) {
  const std::size_t slots = index(shape.tokens);
  const std::size_t combine_slots = index(this->combine_slots());

  cells_offset_ = index(protocol::kKinds + 1) * kLineBytes;
  cells_end_ = round_up(
      cells_offset_ + index(protocol::kCellKinds) * index(shape.banks) * sizeof(protocol::Cell),
      kRowAlignment);

  dispatch_header_bytes_ = DispatchHeaderLayout::bytes(shape.top_k);
  dispatch_row_stride_ = round_up(shape.dispatch_row_bytes, kRowAlignment);
  dispatch_bank_bytes_ = round_up(slots * dispatch_header_bytes_, kRowAlignment);

  combine_row_stride_ = round_up(shape.combine_row_bytes, kRowAlignment);
  masks_offset_ = round_up(slots * weights_bytes(), kLineBytes);
  row_weights_offset_ = round_up(masks_offset_ + combine_slots * sizeof(std::uint32_t), kLineBytes);
  route_rows_offset_ = round_up(row_weights_offset_ + slots * weights_bytes(), kLineBytes);
  combine_rows_offset_ =
      round_up(route_rows_offset_ + (shape.results_in_place ? slots * route_rows_bytes() : 0),
               kRowAlignment);
  combine_bank_bytes_ =
      combine_rows_offset_ + (shape.combine_stages == 0 ? combine_slots * combine_row_stride_ : 0);

  lane_bytes_ = cells_end_ + index(shape.banks) * (dispatch_bank_bytes_ + combine_bank_bytes_);
  staging_offset_ = index(shape.ranks) * lane_bytes_;
  dispatch_stage_bytes_ = slots * dispatch_row_stride_;
  combine_stage_home_bytes_ = combine_slots * combine_row_stride_;
  bytes_ =
      round_up(staging_offset_ + dispatch_staging_bytes() + combine_staging_bytes(), kPageBytes);
}

}  // namespace sluice::window
