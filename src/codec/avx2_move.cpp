// SPDX-License-Identifier: MIT
#include <cstring>

#include "codec/avx2_rows.hpp"
#include "codec/avx2_vectors.hpp"

namespace sluice::codec::avx2 {
namespace {

template <DType from, DType to>
int convert_row(const void* source, void* out, int elements) {
  int done = 0;
  for (; elements - done >= 16; done += 16) {
    const auto index = static_cast<std::size_t>(done);
    store_sixteen<to>(out, index, load_sixteen<from>(source, index));
  }
  return done;
}

template <DType from>
int convert_from(const void* source, void* out, DType out_dtype, int elements) {
  switch (out_dtype) {
    case DType::bf16: return convert_row<from, DType::bf16>(source, out, elements);
    case DType::f16: return convert_row<from, DType::f16>(source, out, elements);
    default: return convert_row<from, DType::f32>(source, out, elements);
  }
}

}  // namespace

int convert(const void* source, DType source_dtype, void* out, DType out_dtype, int elements) {
  switch (source_dtype) {
    case DType::bf16: return convert_from<DType::bf16>(source, out, out_dtype, elements);
    case DType::f16: return convert_from<DType::f16>(source, out, out_dtype, elements);
    default: return convert_from<DType::f32>(source, out, out_dtype, elements);
  }
}

void stream_block(const std::byte* source, std::byte* out, std::size_t bytes) {
  // Without software prefetch: non-temporal stores need the same buffers, and lost more than loads
  // gained (docs/performance/cpu-engine.md).
  std::size_t offset = 0;
  for (; bytes - offset >= 32; offset += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + offset), load_256(source + offset));
  }
  std::memcpy(out + offset, source + offset, bytes - offset);
}

void finish_streaming() {
  _mm_sfence();
}

}  // namespace sluice::codec::avx2
