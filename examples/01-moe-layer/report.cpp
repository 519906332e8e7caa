// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace moe {
namespace {

struct Column {
  const char* name;
  std::vector<double> LayerTimes::*times;
};
constexpr int kColumns = 4;
const Column kTable[kColumns] = {{"dispatch", &LayerTimes::dispatch},
                                 {"experts", &LayerTimes::experts},
                                 {"combine", &LayerTimes::combine},
                                 {"combine, single", &LayerTimes::combine_single}};

void print_times(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf(" |%9.1f%9.1f%9.1f", times.front(), times[times.size() / 2], times.back());
}

}  // namespace

Progress::Progress(bool speaks) : speaks_(speaks), terminal_(isatty(STDOUT_FILENO) == 1) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Progress::at(const std::string& what, int done, int total) {
  const int tenth = total > 0 ? done * 10 / total : 0;
  if (!speaks_ || (!terminal_ && tenth == last_tenth_)) return;
  last_tenth_ = tenth;
  std::printf("%s[%5.1f s] %s: %d of %d%s", terminal_ ? "\r\033[K" : "", seconds(), what.c_str(),
              done, total, terminal_ ? "" : "\n");
  std::fflush(stdout);
}

void Progress::done(const std::string& what) {
  last_tenth_ = -1;
  if (!speaks_) return;
  std::printf("%s[%5.1f s] %s: done\n", terminal_ ? "\r\033[K" : "", seconds(), what.c_str());
  std::fflush(stdout);
}

void print_header(const Options& options, std::size_t text_tokens) {
  const ModelShape& model = options.model;
  const std::string version(sluice::version());
  std::printf("Sluice %s, example 01: a stack of MoE layers\n", version.c_str());
  std::printf(
      "model   %d layers, hidden %d, %d experts of width %d, top-%d and a shared one, bf16\n",
      model.layers, model.hidden, model.experts, model.width, model.top_k);
  std::printf("text    %s: %zu tokens; %d steps of %d are run\n\n", options.text.c_str(),
              text_tokens, options.steps, options.tokens);
  std::fflush(stdout);
}

void print_latencies(const Options& options, const GatheredRun& run) {
  std::printf("\nmicroseconds over %d ranks and %d steps, dispatch and combine %d times each;\n",
              run.ranks, options.steps, options.repetitions);
  std::printf("%d tokens per step over all ranks, every operation after a common start\n\n",
              options.tokens);
  std::printf("%6s", "layer");
  for (const Column& column : kTable) std::printf(" | %-26s", column.name);
  std::printf("\n%6s", "");
  for (int i = 0; i < kColumns; ++i) std::printf(" |%9s%9s%9s", "min", "p50", "max");
  std::printf("\n");
  LayerTimes all;
  for (std::size_t layer = 0; layer < run.times.size(); ++layer) {
    std::printf("%6zu", layer);
    for (const Column& column : kTable) {
      const std::vector<double>& times = run.times[layer].*column.times;
      print_times(times);
      (all.*column.times).insert((all.*column.times).end(), times.begin(), times.end());
    }
    std::printf("\n");
  }
  std::printf("%6s", "all");
  for (const Column& column : kTable) print_times(all.*column.times);
  std::printf("\n");
}

bool print_verdict(const Reference& reference, const std::vector<GatheredRun>& runs) {
  bool good = true;
  const std::uint64_t expected = hash_of(reference.final);
  std::printf("\nreduce = single, bit for bit: hash of all activations after the last layer\n");
  std::printf("  one process, plain loops  %016" PRIx64 "\n", expected);
  for (const GatheredRun& run : runs) {
    const bool equal = run.hash == expected;
    good = good && equal;
    std::printf("  Sluice, R = %-2d            %016" PRIx64 "  %s\n", run.ranks, run.hash,
                equal ? "equal" : "DIFFERENT");
  }
  std::printf(
      "\nreduce = rank, the default: deviation from the same reference, layer by layer;\n"
      "allowed is 2^-8 (sum |w_k y_k| + |a| + |b|) (1 + 2^-6) per element\n");
  for (const GatheredRun& run : runs) {
    const Deviation deviation = compare_updates(reference, run.updates);
    const bool within = deviation.beyond == 0;
    good = good && within;
    std::printf("  Sluice, R = %-2d            worst %.6f, at most %.0f%% of what is allowed  %s\n",
                run.ranks, deviation.worst, deviation.worst_of_bound * 100.0,
                within ? "within" : "BEYOND");
  }
  std::printf("\n%s\n", good ? "PASS: every run agrees with the single-process reference"
                             : "FAIL: a run differs from the single-process reference");
  return good;
}

}  // namespace moe
