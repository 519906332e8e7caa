// SPDX-License-Identifier: MIT
#include "check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/row_kernels.hpp"
#include "numbers.hpp"

#if defined(__x86_64__)
#define SLUICE_BENCH_FMA_TARGET __attribute__((target("avx2,fma")))
#else
#define SLUICE_BENCH_FMA_TARGET
#endif

namespace sluice::bench {
namespace {

constexpr int kPoison = 0xa5;

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Nearest even. The data has no NaN.
std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// sums = fma(weight, row, sums): the same bits with and without the instruction.
SLUICE_BENCH_FMA_TARGET void fma_row_fast(float weight, const std::uint16_t* row, int elements,
                                          float* sums) {
  for (int h = 0; h < elements; ++h) {
    sums[h] = __builtin_fmaf(weight, std::bit_cast<float>(static_cast<std::uint32_t>(row[h]) << 16),
                             sums[h]);
  }
}

void fma_row_plain(float weight, const std::uint16_t* row, int elements, float* sums) {
  for (int h = 0; h < elements; ++h) sums[h] = std::fma(weight, from_bf16(row[h]), sums[h]);
}

void fma_row(float weight, const std::uint16_t* row, int elements, float* sums) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  constexpr bool fast = false;
#endif
  (fast ? fma_row_fast : fma_row_plain)(weight, row, elements, sums);
}

/// What the combine codec leaves of a value, applied to a whole row.
void through_codec(CodecKind kind, std::vector<float>& row, std::vector<std::uint16_t>& half) {
  if (kind == CodecKind::f32) return;
  if (kind == CodecKind::bf16) {
    for (float& value : row) value = from_bf16(to_bf16(value));
    return;
  }
  const int elements = static_cast<int>(row.size());
  const codec::RowKernels& kernels = codec::portable_kernels();
  kernels.convert(row.data(), DType::f32, half.data(), DType::f16, elements);
  kernels.convert(half.data(), DType::f16, row.data(), DType::f32, elements);
}

/// Rows of one token, encoded as dispatch must deliver them.
struct EncodedRow {
  std::vector<std::byte> row;
  std::vector<std::byte> scales;
  std::size_t element_bytes = 1;

  explicit EncodedRow(const Case& bench_case)
      : row(codec::row_bytes(bench_case.dispatch_codec, bench_case.hidden)),
        scales(codec::scale_bytes(bench_case.dispatch_codec, bench_case.hidden)),
        element_bytes(size_of(codec::row_dtype(bench_case.dispatch_codec))) {}

  void encode(const Case& bench_case, const std::uint16_t* source) {
    const codec::RowKernels& kernels = codec::portable_kernels();
    if (bench_case.dispatch_codec.kind == CodecKind::fp8) {
      kernels.quantise(source, DType::bf16, bench_case.dispatch_codec, bench_case.hidden,
                       reinterpret_cast<std::uint8_t*>(row.data()), scales.data());
    } else {
      kernels.convert(source, DType::bf16, row.data(), codec::row_dtype(bench_case.dispatch_codec),
                      bench_case.hidden);
    }
  }
};

std::int64_t differing(const std::byte* seen, const std::byte* expected, std::size_t bytes,
                       std::size_t element_bytes) {
  if (std::memcmp(seen, expected, bytes) == 0) return 0;
  std::int64_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += element_bytes) {
    wrong += std::memcmp(seen + at, expected + at, element_bytes) != 0 ? 1 : 0;
  }
  return wrong;
}

/// Calls use(row) for the row after each filled piece, where the tensor has one that stays empty.
template <typename Use>
void for_each_border(const Workload& workload, const RowSpace& space, int set, int rank,
                     Use&& use) {
  const Case& bench_case = workload.bench_case;
  const bool slab = bench_case.layout == Layout::expert_slab;
  const std::int64_t length = slab ? bench_case.slab_rows_or_default() : space.pool(rank).rows;
  for_each_segment(bench_case, space.placement(set), rank,
                   [&](std::int64_t first, std::int64_t count) {
                     if (count < length) use(first + count);
                   });
}

}  // namespace

void poison_rows(const Workload& workload, const RowSpace& space, int set, int rank,
                 const RowsView& view) {
  const EncodedRow sizes(workload.bench_case);
  const auto poison = [&](std::int64_t row) {
    std::memset(view.rows + index(row) * view.row_stride, kPoison, sizes.row.size());
    if (view.scales != nullptr) {
      std::memset(view.scales + index(row) * view.scale_stride, kPoison, sizes.scales.size());
    }
  };
  for_each_segment(workload.bench_case, space.placement(set), rank,
                   [&](std::int64_t first, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) poison(first + i);
                   });
  for_each_border(workload, space, set, rank, poison);
}

std::int64_t count_wrong_rows(const Workload& workload, const RowSpace& space, int set, int rank,
                              const RowsView& view, bool alone) {
  const Case& bench_case = workload.bench_case;
  EncodedRow expected(bench_case);
  std::int64_t wrong = 0;
  for (int source = 0; source < bench_case.ranks; ++source) {
    for (int token = 0; token < bench_case.tokens_of(source); ++token) {
      bool encoded = false;
      std::int64_t last = -1;
      for (int k = 0; k < bench_case.top_k; ++k) {
        const std::size_t at =
            workload.route_at(source) + index(std::int64_t{token} * bench_case.top_k + k);
        if (bench_case.rank_of_expert(workload.routings[index(set)].ids[at]) != rank) continue;
        const std::int64_t row = space.placement(set).row[at];
        if (row == last) continue;  // rank_major: the token's other routes share the row.
        last = row;
        if (!encoded) expected.encode(bench_case, x_row(workload, set, source, token));
        encoded = true;
        wrong += differing(view.rows + index(row) * view.row_stride, expected.row.data(),
                           expected.row.size(), expected.element_bytes);
        if (view.scales == nullptr) continue;
        wrong += differing(view.scales + index(row) * view.scale_stride, expected.scales.data(),
                           expected.scales.size(), sizeof(float));
      }
    }
  }
  if (!alone) return wrong;
  const std::vector<std::byte> poison(expected.row.size(), std::byte{kPoison});
  for_each_border(workload, space, set, rank, [&](std::int64_t row) {
    wrong += differing(view.rows + index(row) * view.row_stride, poison.data(), poison.size(),
                       expected.element_bytes);
  });
  return wrong;
}

void poison_output(const Workload& workload, std::byte* out) {
  const Case& bench_case = workload.bench_case;
  std::memset(out, kPoison, index(std::int64_t{bench_case.tokens} * bench_case.hidden) * 2);
}

std::int64_t count_wrong_output(const Workload& workload, const RowSpace& space, int set, int rank,
                                SumOrder order, const std::byte* out) {
  const Case& bench_case = workload.bench_case;
  const std::int32_t* ids = workload.ids(set, rank);
  const float* weights = workload.weights(set, rank);
  const bool rows_are_sums = bench_case.layout == Layout::rank_major && order != SumOrder::single;
  std::vector<float> sums(index(bench_case.hidden));
  std::vector<float> part(index(bench_case.hidden));
  std::vector<float> node_sums(index(bench_case.hidden));
  std::vector<std::uint16_t> half(index(bench_case.hidden));
  std::vector<std::uint16_t> expected(index(bench_case.hidden));
  std::int64_t wrong = 0;
  for (int token = 0; token < bench_case.tokens_of(rank); ++token) {
    const std::size_t first = index(std::int64_t{token} * bench_case.top_k);
    std::fill(sums.begin(), sums.end(), 0.0F);
    if (order == SumOrder::single) {
      for (int k = 0; k < bench_case.top_k; ++k) {
        const float weight = weights[first + index(k)];
        const std::uint16_t* row = space.y(set, rank, token, k);
        if (bench_case.combine_codec != CodecKind::f16) {
          fma_row(weight, row, bench_case.hidden, sums.data());  // bf16 and f32 leave y as it is.
          continue;
        }
        std::fill(part.begin(), part.end(), 0.0F);
        fma_row(1.0F, row, bench_case.hidden, part.data());
        through_codec(bench_case.combine_codec, part, half);
        for (std::size_t h = 0; h < sums.size(); ++h) sums[h] = std::fma(weight, part[h], sums[h]);
      }
    } else {
      bool node_answered = false;
      std::fill(node_sums.begin(), node_sums.end(), 0.0F);
      const auto add = [](const std::vector<float>& terms, std::vector<float>& to) {
        for (std::size_t h = 0; h < to.size(); ++h) to[h] += terms[h];
      };
      const auto end_node = [&] {
        if (!node_answered) return;
        through_codec(bench_case.combine_codec, node_sums, half);
        add(node_sums, sums);
        std::fill(node_sums.begin(), node_sums.end(), 0.0F);
        node_answered = false;
      };
      for (int peer = 0; peer < bench_case.ranks; ++peer) {
        bool answered = false;
        if (peer > 0 && bench_case.node_of(peer) != bench_case.node_of(peer - 1)) end_node();
        std::fill(part.begin(), part.end(), 0.0F);
        for (int k = 0; k < bench_case.top_k; ++k) {
          if (bench_case.rank_of_expert(ids[first + index(k)]) != peer) continue;
          if (answered && rows_are_sums) continue;
          answered = true;
          fma_row(rows_are_sums ? 1.0F : weights[first + index(k)], space.y(set, rank, token, k),
                  bench_case.hidden, part.data());
        }
        if (!answered) continue;
        through_codec(bench_case.combine_codec, part, half);
        add(part, order == SumOrder::node ? node_sums : sums);
        node_answered = order == SumOrder::node;
      }
      end_node();
    }
    for (std::size_t h = 0; h < sums.size(); ++h) expected[h] = to_bf16(sums[h]);
    const std::size_t bytes = expected.size() * sizeof(std::uint16_t);
    wrong +=
        differing(out + index(token) * bytes, reinterpret_cast<const std::byte*>(expected.data()),
                  bytes, sizeof(std::uint16_t));
  }
  return wrong;
}

}  // namespace sluice::bench
