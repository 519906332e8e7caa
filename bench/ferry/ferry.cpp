// SPDX-License-Identifier: MIT
//
// How long the ferry takes with what comes together, from the host's first item until the host knows that all has been
// carried: no network, no kernels that wait. docs/performance/cuda-engine.md has figures.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "support/lone_ferry.hpp"

namespace {

using sluice::DType;
using sluice::testing::LoneFerry;
using Clock = std::chrono::steady_clock;

constexpr int kHidden = 7168;
constexpr std::size_t kRowBytes = kHidden * 2;
constexpr int kBank = 1;
constexpr std::uint32_t kTag = 7;

sluice::window::PacketShape shape() {
  sluice::window::PacketShape shape;
  shape.ranks = 2;
  shape.top_k = 8;
  shape.banks = 5;
  shape.tokens = 128;
  shape.local_experts = 64;
  shape.dispatch_row_bytes = 7392;
  shape.combine_row_bytes = kRowBytes;
  shape.cell_tokens = 128;
  return shape;
}

/// Of every token: one of its routes is answered, by each place and by the other node.
bool fill(LoneFerry& lone) {
  const std::uint32_t answer[4] = {kTag, 1, 9, 1};
  bool ok = true;
  for (int token = 0; token < shape().tokens; ++token) {
    const std::size_t at = lone.layout().answer(kBank, token);
    std::memcpy(lone.host(lone.in() + at), answer, sizeof(answer));
    for (int place = 0; place < LoneFerry::kPlaces; ++place) {
      ok = ok && lone.write(lone.answers(place) + at, answer, sizeof(answer)).ok();
    }
  }
  return ok;
}

void add_row(LoneFerry& lone, int token) {
  const std::size_t row = lone.layout().combine_row(kBank, token);
  lone.ferry().carry(lone.in() + row, row, kRowBytes, 1, LoneFerry::kOther);
}
void add_sum(LoneFerry& lone, int token) {
  lone.ferry().carry_sum({LoneFerry::kOther, kBank, token}, kTag, DType::bf16, 0b11);
}
void add_answer(LoneFerry& lone, int token) {
  lone.ferry().carry_sum_answer({LoneFerry::kOther, kBank, token}, kRowBytes / 16);
}
void add_word(LoneFerry& lone, int token) {
  lone.ferry().tell(lone.layout().told(sluice::protocol::Kind::combine),
                    static_cast<std::uint64_t>(token) + 1, LoneFerry::kOther);
}

/// Rows that follow each other.
void add_run(LoneFerry& lone, int tokens) {
  const std::size_t row = lone.layout().combine_row(kBank, 0);
  const std::size_t stride = lone.layout().combine_row_stride();
  lone.ferry().carry(lone.in() + row, row,
                     stride * static_cast<std::size_t>(tokens - 1) + kRowBytes, 1,
                     LoneFerry::kOther);
}
template <void (*add)(LoneFerry&, int)>
void add_each(LoneFerry& lone, int tokens) {
  for (int token = 0; token < tokens; ++token) add(lone, token);
}

/// `add` for so many tokens at once. What comes from host memory was written there just before, as by a socket.
void carry(benchmark::State& state, LoneFerry& lone, void (*add)(LoneFerry&, int)) {
  const auto tokens = static_cast<int>(state.range(0));
  int written = 0;
  for (auto _ : state) {
    ++written;
    std::memset(lone.host(lone.in() + lone.layout().combine_row(kBank, 0)), written,
                kRowBytes * static_cast<std::size_t>(tokens));
    // The ferry looks for items meanwhile, and nothing else.
    for (const auto until = Clock::now() + std::chrono::microseconds(15); Clock::now() < until;) {
      (void)lone.ferry().step();
    }
    const auto begin = Clock::now();
    add(lone, tokens);
    if (!lone.carry_all()) return state.SkipWithError("the ferry did not carry all");
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count());
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (!LoneFerry::has_gpu()) {
    std::printf("no GPU: nothing to measure\n");
    return 0;
  }
  auto lone = LoneFerry::make(shape(), kHidden);
  if (!lone.ok() || !fill(**lone)) {
    std::fprintf(stderr, "no ferry: %s\n", lone.status().to_string().c_str());
    return 1;
  }
  const struct {
    const char* name;
    void (*add)(LoneFerry&, int);
  } kinds[] = {{"words", add_each<add_word>},
               {"rows", add_each<add_row>},
               {"run", add_run},
               {"sums", add_each<add_sum>},
               {"answers", add_each<add_answer>}};
  for (const auto& kind : kinds) {
    benchmark::RegisterBenchmark(
        kind.name, [&, add = kind.add](benchmark::State& state) { carry(state, **lone, add); })
        ->Arg(1)
        ->Arg(8)
        ->Arg(64)
        ->Arg(128)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
