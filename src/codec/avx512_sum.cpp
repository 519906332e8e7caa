// SPDX-License-Identifier: MIT
#include <immintrin.h>

#include "codec/avx512_rows.hpp"
#include "numeric/convert.hpp"

namespace sluice::codec::avx512 {
namespace {

/// Elements of one vector of a row. They are widened in two: even elements and odd ones, which no
/// instruction has to move.
constexpr std::size_t kStep = 32;
/// Vectors of a full block: enough independent chains to hide an addition's latency.
constexpr std::size_t kVectors = 4;
constexpr std::size_t kRowElementBytes = 2;

struct Pair {
  __m512 even;
  __m512 odd;
};

[[gnu::always_inline]] inline Pair widen(__m512i row) {
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xFFFF'0000U));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(row, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(row, top))};
}

/// Bit i: element i of the vector is there.
[[gnu::always_inline]] inline Pair load(const void* row, std::size_t index, __mmask32 there) {
  const auto* const address = static_cast<const std::byte*>(row) + index * kRowElementBytes;
  return widen(_mm512_maskz_loadu_epi16(there, address));
}

/// Nearest even in integers; every NaN is the one of the portable set.
__m512i round_any(Pair value) {
  const auto rounded = [](__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i nan = _mm512_set1_epi32(static_cast<int>(std::uint32_t{numeric::kBf16Nan} << 16));
    return _mm512_mask_mov_epi32(_mm512_add_epi32(bits, bias),
                                 _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
  };
  constexpr __mmask32 kOdd = 0xAAAA'AAAAU;
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(rounded(value.even), 16), kOdd,
                               rounded(value.odd));
}

/// Thirty-two bf16 in their order. The instruction rounds to nearest even, but takes subnormals for
/// zeros and keeps a NaN's payload: vectors with either are rounded the long way.
[[gnu::always_inline]] inline __m512i round(Pair value) {
  constexpr int kNanOrSubnormal = 0x01 | 0x20 | 0x80;
  const __mmask16 special =
      static_cast<__mmask16>(_mm512_fpclass_ps_mask(value.even, kNanOrSubnormal) |
                             _mm512_fpclass_ps_mask(value.odd, kNanOrSubnormal));
  if (__builtin_expect(special != 0, 0)) return round_any(value);
  // [even | odd], then element 2i from i and 2i + 1 from 16 + i.
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(value.odd, value.even);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

template <std::size_t vectors>
[[gnu::always_inline]] inline void prefetch(const void* row, std::size_t begin) {
  // Past the end of the row this fetches what is not read, which is harmless.
  const auto* const address =
      static_cast<const char*>(row) + begin * kRowElementBytes + kPrefetchBytes;
  for (std::size_t vector = 0; vector < vectors; ++vector) {
    _mm_prefetch(address + vector * 64, _MM_HINT_T1);
  }
}

/// The values that round() gives.
[[gnu::always_inline]] inline Pair rounded(Pair value) {
  return widen(round(value));
}

template <std::size_t vectors>
struct Sums {
  Pair value[vectors];
};

template <std::size_t vectors>
[[gnu::always_inline]] inline void clear(Sums<vectors>& sums) {
  for (Pair& sum : sums.value) sum = {_mm512_setzero_ps(), _mm512_setzero_ps()};
}

[[gnu::always_inline]] inline Pair plus(Pair a, Pair b) {
  return {_mm512_add_ps(a.even, b.even), _mm512_add_ps(a.odd, b.odd)};
}

template <bool weighted, std::size_t vectors>
[[gnu::always_inline]] inline void add_term(Sums<vectors>& sums, const SumTerm& term,
                                            std::size_t begin, __mmask32 there) {
  if constexpr (vectors == kVectors) prefetch<vectors>(term.row, begin);
  const __m512 weight = _mm512_set1_ps(term.weight);
  for (std::size_t vector = 0; vector < vectors; ++vector) {
    const Pair value = load(term.row, begin + vector * kStep, there);
    Pair& sum = sums.value[vector];
    if constexpr (weighted) {
      sum = {_mm512_fmadd_ps(weight, value.even, sum.even),
             _mm512_fmadd_ps(weight, value.odd, sum.odd)};
    } else {
      sum = plus(sum, value);
    }
  }
}

template <std::size_t vectors>
[[gnu::always_inline]] inline void add_groups(Sums<vectors>& sums, const PlainSum& args,
                                              std::size_t begin, __mmask32 there) {
  const SumTerm* term = args.terms;
  for (std::size_t group = 0; group < args.group_count; ++group) {
    Sums<vectors> partial;
    clear(partial);
    for (const SumTerm* const end = term + args.groups[group]; term != end; ++term) {
      add_term<true, vectors>(partial, *term, begin, there);
    }
    for (std::size_t vector = 0; vector < vectors; ++vector) {
      sums.value[vector] = plus(sums.value[vector], rounded(partial.value[vector]));
    }
  }
}

enum class Terms { plain, weighted, grouped };

template <Terms form, std::size_t vectors>
[[gnu::always_inline]] inline void sum_block(const PlainSum& args, std::size_t begin,
                                             __mmask32 there) {
  Sums<vectors> sums;
  clear(sums);
  if constexpr (form == Terms::grouped) {
    add_groups<vectors>(sums, args, begin, there);
  } else {
    for (std::size_t term = 0; term < args.term_count; ++term) {
      add_term<form == Terms::weighted, vectors>(sums, args.terms[term], begin, there);
    }
  }
  if (args.scaled) {
    const __m512 scale = _mm512_set1_ps(args.scale);
    for (Pair& sum : sums.value) {
      sum = {_mm512_mul_ps(sum.even, scale), _mm512_mul_ps(sum.odd, scale)};
    }
  }
  for (std::size_t extra = 0; extra < args.extra_count; ++extra) {
    for (std::size_t vector = 0; vector < vectors; ++vector) {
      sums.value[vector] =
          plus(sums.value[vector], load(args.extras[extra].row, begin + vector * kStep, there));
    }
  }
  for (std::size_t vector = 0; vector < vectors; ++vector) {
    auto* const out =
        static_cast<std::byte*>(args.out) + (begin + vector * kStep) * kRowElementBytes;
    const __m512i rounded = round(sums.value[vector]);
    if (vectors == kVectors && args.streaming) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out), rounded);
    } else {
      _mm512_mask_storeu_epi16(out, there, rounded);
    }
  }
}

template <Terms form>
void sum_rows(const PlainSum& args) {
  constexpr std::size_t kBlock = kVectors * kStep;
  constexpr __mmask32 kAll = 0xFFFF'FFFFU;
  const auto elements = static_cast<std::size_t>(args.elements);
  std::size_t done = 0;
  for (; elements - done >= kBlock; done += kBlock) {
    sum_block<form, kVectors>(args, done, kAll);
  }
  for (; done < elements; done += kStep) {
    const std::size_t left = elements - done;
    sum_block<form, 1>(args, done, left >= kStep ? kAll : (__mmask32{1} << left) - 1U);
  }
}

}  // namespace

void sum(const PlainSum& args) {
  for (std::size_t term = 0; term < args.next_count; ++term) {
    const auto* const row = static_cast<const char*>(args.next[term].row);
    for (std::size_t offset = 0; offset < kPrefetchNextBytes; offset += 64) {
      _mm_prefetch(row + offset, _MM_HINT_T1);
    }
  }
  if (args.group_count > 0) {
    sum_rows<Terms::grouped>(args);
  } else if (args.weighted) {
    sum_rows<Terms::weighted>(args);
  } else {
    sum_rows<Terms::plain>(args);
  }
}

}  // namespace sluice::codec::avx512
