// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::protocol {

/// Operations are counted apart for each kind; epoch 1 is the first.
enum class Kind : std::uint8_t { dispatch = 0, combine = 1 };
inline constexpr int kKinds = 2;

/// The cells of a bank. `weights` is the first phase of a combine that was given its weights.
enum class CellKind : std::uint8_t { dispatch = 0, combine = 1, weights = 2 };
inline constexpr int kCellKinds = 3;

/// What a sender did with its call, bit by bit.
namespace cell_flags {
inline constexpr std::uint32_t kRefused = 1U << 0;       // Took part with nothing.
inline constexpr std::uint32_t kNoRows = 1U << 1;        // Routing only (plan).
inline constexpr std::uint32_t kCached = 1U << 2;        // Rows only: routing is that of a handle.
inline constexpr std::uint32_t kGivenWeights = 1U << 3;  // combine: the weights phase takes place.
inline constexpr std::uint32_t kRowWeights = 1U << 4;    // combine: row weights travel home.
inline constexpr std::uint32_t kRegistered = 1U
                                             << 5;  // Rows are read in place, in registered memory.
inline constexpr std::uint32_t kPlainSum = 1U << 6;  // combine: results are added unweighted.
inline constexpr std::uint32_t kNothing = 1U << 7;   // combine: answers nothing to this peer.
/// combine: whoever has one of these sends weights cells, too.
inline constexpr std::uint32_t kWithWeights = kGivenWeights | kRefused;
/// Flags in which sender and receiver must agree.
inline constexpr std::uint32_t kAgreed =
    kNoRows | kCached | kGivenWeights | kRowWeights | kPlainSum;
}  // namespace cell_flags

/// What every operation says to every peer, in one form in every mode and codec, so that a
/// difference between ranks is seen and reported rather than waited for.
struct CellContent {
  std::uint32_t flags = 0;
  std::int32_t records = 0;  // Records (dispatch, combine) sent to this peer.
  std::uint8_t mode = 0;     // sluice::Mode
  std::uint8_t layout = 0;   // sluice::Layout
  std::uint8_t codec_kind = 0;
  std::uint8_t codec_form = 0;  // dispatch: sluice::ScaleForm; combine: sluice::Reduce
  std::uint16_t codec_group = 0;
  std::uint8_t row_dtype = 0;  // combine, kRegistered: sluice::DType of the rows
  std::uint8_t in_sum = 0;     // combine, between nodes: its results are in the sum of its node
  std::int64_t capacity = 0;
  std::int64_t alignment = 0;
  std::uint64_t row_offset = 0;  // Rows that are pulled: the first, from the window's base or that
                                 // of registered memory.
  std::uint64_t row_stride = 0;  // bytes
  std::uint64_t dispatch = 0;    // combine, cached dispatch: epoch of the handle's dispatch
};

/// Whether two sides made the same call, as far as cells tell. Refusing cells agree with anything.
inline bool agree(const CellContent& a, const CellContent& b) noexcept {
  return a.mode == b.mode && a.layout == b.layout && a.codec_kind == b.codec_kind &&
         a.codec_form == b.codec_form && a.codec_group == b.codec_group &&
         a.capacity == b.capacity && a.alignment == b.alignment && a.dispatch == b.dispatch &&
         (a.flags & cell_flags::kAgreed) == (b.flags & cell_flags::kAgreed);
}

/// cell := epoch content. The content is written first, then the epoch with release; a reader loads
/// the epoch with acquire, compares it for equality, then reads the content. Never cleared.
struct alignas(64) Cell {
  std::uint64_t epoch;
  CellContent content;
};
static_assert(sizeof(CellContent) == 56);
static_assert(sizeof(Cell) == 64);

}  // namespace sluice::protocol
