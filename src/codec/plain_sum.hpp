// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/row_kernels.hpp"

namespace sluice::codec {

/// SumArgs for objects that are compiled for one instruction set: arguments are plain data, and
/// those objects instantiate nothing from the standard library, so that no shared inline function
/// gets a copy with their instructions in it.
struct PlainSum {
  const SumTerm* terms = nullptr;
  std::size_t term_count = 0;
  const std::uint8_t* groups = nullptr;
  std::size_t group_count = 0;
  DType term_dtype = DType::bf16;
  bool weighted = false;
  bool scaled = false;
  float scale = 1.0F;
  const SumExtra* extras = nullptr;
  std::size_t extra_count = 0;
  void* out = nullptr;
  DType out_dtype = DType::bf16;
  int elements = 0;
  bool streaming = false;  // `out` is aligned for it and of 16-bit elements.
  const SumTerm* next = nullptr;
  std::size_t next_count = 0;
};

/// `alignment`: what `out` must have for streaming.
inline PlainSum plain(const SumArgs& args, std::size_t alignment) noexcept {
  PlainSum plain;
  plain.terms = args.terms.data();
  plain.term_count = args.terms.size();
  plain.groups = args.groups.data();
  plain.group_count = args.groups.size();
  plain.term_dtype = args.term_dtype;
  plain.weighted = args.weighted;
  plain.scaled = args.scaled;
  plain.scale = args.scale;
  plain.extras = args.extras.data();
  plain.extra_count = args.extras.size();
  plain.out = args.out;
  plain.out_dtype = args.out_dtype;
  plain.elements = args.elements;
  plain.streaming = args.streaming && args.out_dtype != DType::f32 &&
                    reinterpret_cast<std::uintptr_t>(args.out) % alignment == 0;
  plain.next = args.next.data();
  plain.next_count = args.next.size();
  return plain;
}

/// How far ahead of its use a term's row is fetched, because there may be more rows than the
/// hardware's prefetcher can follow, and how much of the next call's rows. Into the second-level
/// cache: rows lie at distances that put many of them into the same few sets of the first, where
/// they would evict one another unread. Measured: docs/performance/cpu-engine.md.
inline constexpr std::size_t kPrefetchBytes = 2048;
inline constexpr std::size_t kPrefetchNextBytes = 1024;

}  // namespace sluice::codec
