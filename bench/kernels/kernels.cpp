// SPDX-License-Identifier: MIT
// Speed of the row kernels of every set of this processor beside memcpy. Bytes are those read plus
// those written, so that all lines compare with one another. `rows` is the number of rows walked
// through: few stay in a core's cache, many come from memory.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "codec/row_kernels.hpp"
#include "numeric/convert.hpp"

namespace sluice {
namespace {

constexpr int kHidden = 7168;
constexpr std::size_t kRowBytes = kHidden * 2;

/// Aligned to a page, as registered memory is; filled, so that its pages exist.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}))) {
    for (std::size_t i = 0; i < bytes / 2; ++i) {
      const float value = static_cast<float>(static_cast<int>(i * 37 % 2001) - 1000) / 64.0F;
      const std::uint16_t element = numeric::bf16_from_f32(value);
      std::memcpy(data_ + i * 2, &element, 2);
    }
  }
  ~Buffer() { ::operator delete (data_, std::align_val_t{4096}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* row(std::size_t index, std::size_t bytes = kRowBytes) const {
    return data_ + index * bytes;
  }

 private:
  std::byte* data_;
};

void report(benchmark::State& state, std::size_t bytes_per_iteration) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes_per_iteration) * state.iterations());
}

void copy_row(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Buffer source(rows * kRowBytes);
  const Buffer out(rows * kRowBytes);
  std::size_t row = 0;
  for (auto _ : state) {
    std::memcpy(out.row(row), source.row(row), kRowBytes);
    benchmark::ClobberMemory();
    row = row + 1 < rows ? row + 1 : 0;
  }
  report(state, 2 * kRowBytes);
}

void quantise(benchmark::State& state, const codec::RowKernels* kernels, ScaleForm form) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Codec codec{CodecKind::fp8, form, 128};
  const std::size_t scale_bytes = codec::scale_bytes(codec, kHidden);
  const std::size_t record = kHidden + 256;
  const Buffer source(rows * kRowBytes);
  const Buffer out(rows * record);
  std::size_t row = 0;
  for (auto _ : state) {
    std::byte* const to = out.row(row, record);
    kernels->quantise(source.row(row), DType::bf16, codec, kHidden,
                      reinterpret_cast<std::uint8_t*>(to), to + kHidden);
    benchmark::ClobberMemory();
    row = row + 1 < rows ? row + 1 : 0;
  }
  report(state, kRowBytes + kHidden + scale_bytes);
}

void sum(benchmark::State& state, const codec::RowKernels* kernels, std::size_t term_count) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Buffer source(rows * kRowBytes);
  const Buffer out(rows * kRowBytes);
  std::vector<codec::SumTerm> terms(term_count);
  std::size_t row = 0;
  for (auto _ : state) {
    for (std::size_t term = 0; term < term_count; ++term) {
      terms[term] = {source.row((row + term) % rows), 0.125F};
    }
    codec::SumArgs args;
    args.terms = terms;
    args.weighted = true;
    args.out = out.row(row);
    args.elements = kHidden;
    kernels->sum(args);
    benchmark::ClobberMemory();
    row = (row + term_count) % rows;
  }
  report(state, (term_count + 1) * kRowBytes);
}

void fan_out(benchmark::State& state, const codec::RowKernels* kernels, bool streaming) {
  constexpr std::size_t kDestinations = 4;
  const auto rows = static_cast<std::size_t>(state.range(0));
  const Buffer source(rows * kRowBytes);
  const Buffer out(rows * kDestinations * kRowBytes);
  std::size_t row = 0;
  for (auto _ : state) {
    std::array<void*, kDestinations> destinations{};
    for (std::size_t i = 0; i < kDestinations; ++i) {
      destinations[i] = out.row(i * rows + row);
    }
    kernels->fan_out(source.row(row), kRowBytes, destinations.data(), kDestinations, streaming);
    benchmark::ClobberMemory();
    row = row + 1 < rows ? row + 1 : 0;
  }
  report(state, (1 + kDestinations) * kRowBytes);
}

/// 8 rows stay in a core's own cache; 8192 rows are 112 MiB.
template <typename... Arguments>
void add(const std::string& name, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), arguments...)->ArgName("rows")->Arg(8)->Arg(8192);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  add("memcpy", copy_row);
  for (const codec::RowKernels* kernels :
       {&codec::portable_kernels(), codec::avx2_kernels(), codec::avx512_kernels()}) {
    if (kernels == nullptr) {
      continue;
    }
    const std::string set = kernels->name;
    add(set + "/quantise_f32", quantise, kernels, ScaleForm::f32);
    add(set + "/quantise_ue8m0", quantise, kernels, ScaleForm::ue8m0);
    for (const std::size_t terms : {std::size_t{2}, std::size_t{8}, std::size_t{32}}) {
      add(set + "/sum_" + std::to_string(terms), sum, kernels, terms);
    }
    add(set + "/fan_out_4", fan_out, kernels, false);
    add(set + "/fan_out_4_streaming", fan_out, kernels, true);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
