// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "codec/elements.hpp"
#include "codec/portable_parts.hpp"
#include "codec/row_kernels.hpp"
#include "codec/scale_writer.hpp"
#include "numeric/fp8_scale.hpp"

namespace sluice::codec {
namespace {

/// Elements that a sum keeps on its stack while it walks the terms.
constexpr int kSumBlock = 64;
/// Small enough that the source stays in the first-level cache for all destinations.
constexpr std::size_t kCopyBlock = 4096;

template <DType dtype>
struct DTypeConstant {
  static constexpr DType value = dtype;
};

/// Calls function(DTypeConstant<dtype>{}) for one of the three row types.
template <typename Function>
void with_row_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::bf16: function(DTypeConstant<DType::bf16>{}); break;
    case DType::f16: function(DTypeConstant<DType::f16>{}); break;
    default: function(DTypeConstant<DType::f32>{}); break;
  }
}

using Block = std::array<float, kSumBlock>;

template <DType dtype>
void add_term(Block& sums, const SumTerm& term, bool weighted, std::size_t begin,
              std::size_t count) {
  if (weighted) {
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = std::fma(term.weight, load_element<dtype>(term.row, begin + i), sums[i]);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = sums[i] + load_element<dtype>(term.row, begin + i);
    }
  }
}

template <DType dtype>
void add_terms(Block& sums, const SumArgs& args, std::size_t begin, std::size_t count) {
  if (args.groups.empty()) {
    for (const SumTerm& term : args.terms) {
      add_term<dtype>(sums, term, args.weighted, begin, count);
    }
    return;
  }
  const SumTerm* term = args.terms.data();
  for (const std::uint8_t group : args.groups) {
    Block partial{};
    for (int i = 0; i < group; ++i) add_term<dtype>(partial, *term++, true, begin, count);
    for (std::size_t i = 0; i < count; ++i) {
      std::array<std::byte, element_bytes(dtype)> rounded{};
      store_element<dtype>(rounded.data(), 0, partial[i]);
      sums[i] = sums[i] + load_element<dtype>(rounded.data(), 0);
    }
  }
}

void sum_block(const SumArgs& args, std::size_t begin, std::size_t count) {
  Block sums{};
  with_row_dtype(args.term_dtype,
                 [&](auto dtype) { add_terms<decltype(dtype)::value>(sums, args, begin, count); });
  if (args.scaled) {
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = sums[i] * args.scale;
    }
  }
  for (const SumExtra& extra : args.extras) {
    with_row_dtype(extra.dtype, [&](auto dtype) {
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] = sums[i] + load_element<decltype(dtype)::value>(extra.row, begin + i);
      }
    });
  }
  with_row_dtype(args.out_dtype, [&](auto dtype) {
    for (std::size_t i = 0; i < count; ++i) {
      store_element<decltype(dtype)::value>(args.out, begin + i, sums[i]);
    }
  });
}

void convert(const void* source, DType source_dtype, void* out, DType out_dtype, int elements) {
  portable::convert_range(source, source_dtype, out, out_dtype, 0, elements);
}

void quantise(const void* source, DType source_dtype, const Codec& codec, int elements,
              std::uint8_t* out, std::byte* out_scales) {
  const int groups = scale_count(codec, elements);
  for (int group = 0; group < groups; ++group) {
    const int begin = group * codec.group;
    const int end = begin + std::min(codec.group, elements - begin);
    const float scale =
        portable::quantise_group(source, source_dtype, codec.scale_form, begin, end, out);
    write_scale(out_scales, group, scale, codec.scale_form);
  }
  finish_scales(out_scales, groups, codec.scale_form);
}

void sum(const SumArgs& args) {
  portable::sum_range(args, 0, args.elements);
}

void fan_out(const void* source, std::size_t bytes, void* const* destinations, int count,
             bool /*streaming*/) {
  const auto* from = static_cast<const std::byte*>(source);
  for (std::size_t offset = 0; offset < bytes; offset += kCopyBlock) {
    const std::size_t length = std::min(kCopyBlock, bytes - offset);
    for (int i = 0; i < count; ++i) {
      std::memcpy(static_cast<std::byte*>(destinations[i]) + offset, from + offset, length);
    }
  }
}

}  // namespace

namespace portable {

void convert_range(const void* source, DType source_dtype, void* out, DType out_dtype, int begin,
                   int end) {
  if (end <= begin) {
    return;
  }
  const auto first = static_cast<std::size_t>(begin);
  const auto last = static_cast<std::size_t>(end);
  if (source_dtype == out_dtype) {
    const std::size_t size = element_bytes(source_dtype);
    std::memcpy(static_cast<std::byte*>(out) + first * size,
                static_cast<const std::byte*>(source) + first * size, (last - first) * size);
    return;
  }
  with_row_dtype(source_dtype, [&](auto from) {
    with_row_dtype(out_dtype, [&](auto to) {
      for (std::size_t i = first; i < last; ++i) {
        store_element<decltype(to)::value>(out, i, load_element<decltype(from)::value>(source, i));
      }
    });
  });
}

void sum_range(const SumArgs& args, int begin, int end) {
  for (int i = begin; i < end;) {
    const int count = std::min(kSumBlock, end - i);
    sum_block(args, static_cast<std::size_t>(i), static_cast<std::size_t>(count));
    i += count;
  }
}

float quantise_group(const void* source, DType source_dtype, ScaleForm form, int begin, int end,
                     std::uint8_t* out) {
  const auto first = static_cast<std::size_t>(begin);
  const auto last = static_cast<std::size_t>(end);
  float amax = numeric::kAmaxFloor;
  float scale = 0.0F;
  with_row_dtype(source_dtype, [&](auto dtype) {
    constexpr DType kFrom = decltype(dtype)::value;
    for (std::size_t i = first; i < last; ++i) {
      amax = numeric::wider_amax(amax, load_element<kFrom>(source, i));
    }
    scale = numeric::fp8_scale(amax, form);
    for (std::size_t i = first; i < last; ++i) {
      out[i] = numeric::fp8_code(load_element<kFrom>(source, i), amax, scale, form);
    }
  });
  return scale;
}

}  // namespace portable

const RowKernels& portable_kernels() noexcept {
  static constexpr RowKernels kKernels{"portable", convert, quantise, sum, fan_out, [] {}};
  return kKernels;
}

}  // namespace sluice::codec
