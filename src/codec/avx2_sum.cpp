// SPDX-License-Identifier: MIT
#include "codec/avx2_rows.hpp"
#include "codec/avx2_vectors.hpp"

namespace sluice::codec::avx2 {
namespace {

/// Vector pairs of a full block. Eight independent chains of additions hide their latency, and with
/// the row's elements and the weight they still fit the sixteen registers.
constexpr std::size_t kPairs = 4;
constexpr std::size_t kLine = 64;

template <std::size_t pairs>
struct Sums {
  Sixteen value[pairs];
};

template <DType dtype, std::size_t pairs>
[[gnu::always_inline]] inline void add_row(Sums<pairs>& sums, const void* row, std::size_t begin) {
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const Sixteen row_value = load_sixteen<dtype>(row, begin + pair * 16);
    sums.value[pair].low = _mm256_add_ps(sums.value[pair].low, row_value.low);
    sums.value[pair].high = _mm256_add_ps(sums.value[pair].high, row_value.high);
  }
}

template <DType dtype, std::size_t pairs>
[[gnu::always_inline]] inline void add_weighted_row(Sums<pairs>& sums, const SumTerm& term,
                                                    std::size_t begin) {
  const __m256 weight = _mm256_set1_ps(term.weight);
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const Sixteen row_value = load_sixteen<dtype>(term.row, begin + pair * 16);
    sums.value[pair].low = _mm256_fmadd_ps(weight, row_value.low, sums.value[pair].low);
    sums.value[pair].high = _mm256_fmadd_ps(weight, row_value.high, sums.value[pair].high);
  }
}

template <DType dtype, std::size_t pairs, bool streaming = false>
[[gnu::always_inline]] inline void store_sums(const Sums<pairs>& sums, void* out,
                                              std::size_t begin) {
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    store_sixteen<dtype, streaming>(out, begin + pair * 16, sums.value[pair]);
  }
}

template <bool streaming, std::size_t pairs>
[[gnu::always_inline]] inline void store_any(const Sums<pairs>& sums, const PlainSum& args,
                                             std::size_t begin) {
  switch (args.out_dtype) {
    case DType::bf16: store_sums<DType::bf16, pairs, streaming>(sums, args.out, begin); break;
    case DType::f16: store_sums<DType::f16, pairs, streaming>(sums, args.out, begin); break;
    default: store_sums<DType::f32, pairs>(sums, args.out, begin); break;
  }
}

template <DType dtype, std::size_t pairs>
[[gnu::always_inline]] inline void prefetch_row(const void* row, std::size_t begin) {
  constexpr std::size_t kElementBytes = dtype == DType::f32 ? 4 : 2;
  constexpr std::size_t kBlockBytes = pairs * 16 * kElementBytes;
  // Past the end of the row this fetches what is not read, which is harmless, at most 32 lines.
  const auto* const address =
      reinterpret_cast<const char*>(element_address(row, begin, kElementBytes)) + kPrefetchBytes;
  for (std::size_t offset = 0; offset < kBlockBytes; offset += kLine) {
    _mm_prefetch(address + offset, _MM_HINT_T1);
  }
}

inline void prefetch_next(const PlainSum& args) {
  for (std::size_t term = 0; term < args.next_count; ++term) {
    const auto* const row = static_cast<const char*>(args.next[term].row);
    for (std::size_t offset = 0; offset < kPrefetchNextBytes; offset += kLine) {
      _mm_prefetch(row + offset, _MM_HINT_T1);
    }
  }
}

template <std::size_t pairs>
[[gnu::always_inline]] inline void clear(Sums<pairs>& sums) {
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    sums.value[pair] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  }
}

template <DType dtype>
[[gnu::always_inline]] inline __m256 rounded(__m256 value) {
  if constexpr (dtype == DType::bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(value), 16));
  } else if constexpr (dtype == DType::f16) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  } else {
    return value;
  }
}

template <DType dtype, std::size_t pairs>
[[gnu::always_inline]] inline void add_groups(Sums<pairs>& sums, const PlainSum& args,
                                              std::size_t begin) {
  const SumTerm* term = args.terms;
  for (std::size_t group = 0; group < args.group_count; ++group) {
    Sums<pairs> partial;
    clear(partial);
    for (const SumTerm* const end = term + args.groups[group]; term != end; ++term) {
      prefetch_row<dtype, pairs>(term->row, begin);
      add_weighted_row<dtype, pairs>(partial, *term, begin);
    }
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      Sixteen& sum = sums.value[pair];
      sum.low = _mm256_add_ps(sum.low, rounded<dtype>(partial.value[pair].low));
      sum.high = _mm256_add_ps(sum.high, rounded<dtype>(partial.value[pair].high));
    }
  }
}

enum class Terms { plain, weighted, grouped };

template <DType term_dtype, Terms form, std::size_t pairs>
[[gnu::always_inline]] inline void sum_block(const PlainSum& args, std::size_t begin) {
  Sums<pairs> sums;
  clear(sums);
  if constexpr (form == Terms::grouped) {
    add_groups<term_dtype, pairs>(sums, args, begin);
  } else {
    for (std::size_t term = 0; term < args.term_count; ++term) {
      if constexpr (pairs > 1) prefetch_row<term_dtype, pairs>(args.terms[term].row, begin);
      if constexpr (form == Terms::weighted) {
        add_weighted_row<term_dtype, pairs>(sums, args.terms[term], begin);
      } else {
        add_row<term_dtype, pairs>(sums, args.terms[term].row, begin);
      }
    }
  }
  if (args.scaled) {
    const __m256 scale = _mm256_set1_ps(args.scale);
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      sums.value[pair].low = _mm256_mul_ps(sums.value[pair].low, scale);
      sums.value[pair].high = _mm256_mul_ps(sums.value[pair].high, scale);
    }
  }
  for (std::size_t extra = 0; extra < args.extra_count; ++extra) {
    const void* const row = args.extras[extra].row;
    switch (args.extras[extra].dtype) {
      case DType::bf16: add_row<DType::bf16, pairs>(sums, row, begin); break;
      case DType::f16: add_row<DType::f16, pairs>(sums, row, begin); break;
      default: add_row<DType::f32, pairs>(sums, row, begin); break;
    }
  }
  if (args.streaming) {
    store_any<true>(sums, args, begin);
  } else {
    store_any<false>(sums, args, begin);
  }
}

template <DType term_dtype, Terms form>
int sum_rows(const PlainSum& args) {
  // A group's sum takes registers, too.
  constexpr std::size_t kBlockPairs = form == Terms::grouped ? kPairs / 2 : kPairs;
  constexpr int kBlock = static_cast<int>(kBlockPairs) * 16;
  int done = 0;
  for (; args.elements - done >= kBlock; done += kBlock) {
    sum_block<term_dtype, form, kBlockPairs>(args, static_cast<std::size_t>(done));
  }
  for (; args.elements - done >= 16; done += 16) {
    sum_block<term_dtype, form, 1>(args, static_cast<std::size_t>(done));
  }
  return done;
}

template <DType term_dtype>
int sum_any(const PlainSum& args) {
  if (args.group_count > 0) return sum_rows<term_dtype, Terms::grouped>(args);
  return args.weighted ? sum_rows<term_dtype, Terms::weighted>(args)
                       : sum_rows<term_dtype, Terms::plain>(args);
}

}  // namespace

int sum(const PlainSum& args) {
  prefetch_next(args);
  switch (args.term_dtype) {
    case DType::bf16: return sum_any<DType::bf16>(args);
    case DType::f16: return sum_any<DType::f16>(args);
    default: return sum_any<DType::f32>(args);
  }
}

}  // namespace sluice::codec::avx2
