// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/limits.hpp"
#include "sluice/report.hpp"
#include "window/window_layout.hpp"

/// The bytes of a handle, one source for host and device.
///
///   handle   := header sent received
///   sent     := topk_ids:i32[T'][K] topk_weights:f32[T'][K]
///   received := counts:i32[L] aligned_counts:i32[L] offsets:i64[L+1] source_offsets:i64[R+1]
///               record_rank:i32[N'] record_token:i32[N'] local_ids:i32[N'][K]
///               local_weights:f32[N'][K] route_rows:i32[N'][K] record_numbers:i32[T'][R]
///
/// T' is the most tokens of one call, N' = R * T'. Every array starts on a cache line. record_numbers, of a token and of a rank
/// that it goes to, counts the records before that one which go to the same rank; only the CUDA engine's throughput mode has it.
namespace sluice::window {

inline constexpr std::uint64_t kHandleMagic = 0x31656C646E6148ULL;  // "Handle1"

/// What kernels ask of a handle first, in two loads. Zero in handles of the CPU engine.
struct alignas(16) HandleBrief {
  std::uint32_t key = 0;       // Of the communicator and rank that made it; 0: refused.
  std::uint32_t dispatch = 0;  // low half
  std::uint32_t records = 0;
  std::uint32_t tokens : 24 = 0;
  std::uint32_t layout : 8 = 0;
  std::int64_t rows = 0;
  std::int64_t capacity = 0;
};

static_assert(kMaxTokens < 1 << 24);

struct HandleHeader {
  HandleBrief brief;
  std::uint64_t magic = 0;
  std::uint64_t fingerprint =
      0;                       // Of the communicator's shape and this rank: foreign handles differ.
  std::uint64_t dispatch = 0;  // Epoch of the dispatch that made it: equal on all ranks.
  std::int32_t ranks = 0;
  std::int32_t rank = 0;
  std::int32_t top_k = 0;
  std::int32_t local_experts = 0;
  std::int32_t max_tokens = 0;  // T'
  std::int32_t tokens = 0;      // T
  std::int32_t refused = 0;
  std::int32_t weights_given = 0;
  std::uint8_t layout = 0;
  std::uint8_t reserved[7] = {};
  std::int64_t alignment = 1;
  std::int64_t capacity = 0;
  std::int64_t records = 0;
  std::int64_t rows = 0;
  RankSet accepted;  // Sources whose records are counted here.
  Report report;
};

class HandleLayout {
 public:
  constexpr HandleLayout(int ranks, int top_k, int local_experts, int max_tokens) noexcept {
    const auto k = static_cast<std::size_t>(top_k);
    const auto t = static_cast<std::size_t>(max_tokens);
    const auto l = static_cast<std::size_t>(local_experts);
    const auto r = static_cast<std::size_t>(ranks);
    const std::size_t n = r * t;
    std::size_t end = round_up(sizeof(HandleHeader), kLineBytes);
    const auto take = [&end](std::size_t array_bytes) {
      const std::size_t at = end;
      end = round_up(end + array_bytes, kLineBytes);
      return at;
    };
    topk_ids = take(4 * t * k);
    topk_weights = take(4 * t * k);
    counts = take(4 * l);
    aligned_counts = take(4 * l);
    offsets = take(8 * (l + 1));
    source_offsets = take(8 * (r + 1));
    record_rank = take(4 * n);
    record_token = take(4 * n);
    local_ids = take(4 * n * k);
    local_weights = take(4 * n * k);
    route_rows = take(4 * n * k);
    (void)take(4 * n);  // record_numbers()
    bytes = end;
  }
  explicit constexpr HandleLayout(const HandleHeader& header) noexcept
      : HandleLayout(header.ranks, header.top_k, header.local_experts, header.max_tokens) {}

  std::size_t topk_ids, topk_weights, counts, aligned_counts, offsets, source_offsets, record_rank,
      record_token, local_ids, local_weights, route_rows;
  std::size_t bytes;

  /// As long as record_rank. No member: kernels are given this class, and all of it takes time.
  constexpr std::size_t record_numbers() const noexcept {
    return bytes - (record_token - record_rank);
  }
};

}  // namespace sluice::window
