// SPDX-License-Identifier: MIT
//
// Chapter 2: the layer of chapter 1 on GPUs. README.md beside this file tells the story;
// gpu_layer.cpp is where Sluice is used.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/sluice.hpp>

#include "gather.hpp"
#include "gpu.hpp"
#include "gpu_options.hpp"
#include "gpu_stack.hpp"
#include "processes.hpp"
#include "reference.hpp"
#include "report.hpp"
#include "tokeniser.hpp"

namespace moe {
namespace {

constexpr int kFailed = 1;
constexpr int kBadArguments = 2;
constexpr int kSkipped = 77;  // What ctest takes for a skipped test.

/// What the leader knows in the end.
struct Runs {
  std::vector<GatheredRun> gpu;
  bool like_cpu = true;  ///< Whether the CPU engine's bits are the same.
};

std::string over_ranks(const char* what, int ranks) {
  return std::string(what) + " over " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

/// The stack on the ranks' GPUs. In the whole world it is also run by the CPU engine, which must
/// form the same sums, bit for bit, in every order.
sluice::Status run_part(sluice::World& part, bool whole, const GpuOptions& options, int device,
                        const std::vector<std::int32_t>& tokens, Progress& progress, Runs& runs) {
  const Options& common = options.common;
  std::string what = over_ranks("CUDA engine", part.size());
  const auto report = [&](int step, int layer) {
    progress.at(what + ", layers run", step * common.model.layers + layer,
                common.steps * common.model.layers);
  };
  auto result = run_gpu_stack(part, options, device, tokens, report);
  if (!result) return result.status();
  auto run = gather_run(part, common, std::move(result).value());
  if (!run) return run.status();
  progress.done(what);
  runs.gpu.push_back(std::move(run).value());
  if (!whole) return {};

  what = over_ranks("CPU engine", part.size());
  Options once = common;
  once.repetitions = 1;
  auto cpu_result = run_stack(part, once, tokens, report);
  if (!cpu_result) return cpu_result.status();
  auto cpu_run = gather_run(part, once, std::move(cpu_result).value());
  if (!cpu_run) return cpu_run.status();
  progress.done(what);
  const GatheredRun& gpu_run = runs.gpu.back();
  runs.like_cpu = cpu_run->hash == gpu_run.hash && cpu_run->updates == gpu_run.updates;
  return {};
}

/// The first `ranks` ranks of the world run the stack; the others wait at the next split.
sluice::Status run_over(sluice::World& world, int ranks, const GpuOptions& options, int device,
                        const std::vector<std::int32_t>& tokens, Progress& progress, Runs& runs) {
  const bool takes_part = world.rank() < ranks;
  auto part = world.split(takes_part ? 0 : -1, world.rank());
  if (!takes_part) return {};
  if (!part) return part.status();
  const bool whole = ranks == world.size();
  if (sluice::Status status = run_part(*part, whole, options, device, tokens, progress, runs);
      !status) {
    return status;
  }
  return part->leave(std::chrono::seconds(30));
}

/// The whole world, and the smaller numbers of ranks that must give the same bits.
std::vector<int> sizes_to_run(const GpuOptions& options, int world) {
  std::vector<int> sizes = {world};
  std::string error;
  for (const int ranks : {4, 2, 1}) {
    if (ranks < world && check_ranks(options, ranks, error)) sizes.push_back(ranks);
  }
  return sizes;
}

bool read_tokens(const Options& options, std::vector<std::int32_t>& tokens, std::size_t& of_text,
                 std::string& error) {
  std::string text;
  if (!read_text(options.text, text, error)) return false;
  const std::vector<std::int32_t> all = tokenise(text, options.model.vocabulary);
  of_text = all.size();
  if (all.empty()) {
    error = "'" + options.text + "' has no words";
    return false;
  }
  tokens = repeat_to(
      all, static_cast<std::size_t>(options.steps) * static_cast<std::size_t>(options.tokens));
  return true;
}

int compare_and_print(const GpuOptions& options, const std::vector<std::int32_t>& tokens,
                      const Runs& runs, Progress& progress) {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::string what = "one process, plain loops";
  const Options& common = options.common;
  const Reference reference = run_reference(common.model, tokens, threads, [&](int layer) {
    progress.at(what + ", layers run", layer, common.model.layers);
  });
  progress.done(what);
  print_latencies(common, runs.gpu.front());
  std::printf("\nTimes between CUDA events, of each operation that of the slowest rank.\n");
  std::printf("The CPU engine over as many ranks, both orders of sums, bit for bit: %s\n",
              runs.like_cpu ? "equal" : "DIFFERENT");
  const bool good = print_verdict(reference, runs.gpu);
  if (!runs.like_cpu) std::printf("FAIL: the CUDA engine differs from the CPU engine\n");
  return good && runs.like_cpu ? 0 : kFailed;
}

int run_rank(sluice::Result<sluice::World> joined, const GpuOptions& options, int gpus) {
  if (!joined) {
    std::fprintf(stderr, "cannot join: %s\n", joined.status().to_string().c_str());
    return kFailed;
  }
  sluice::World world = std::move(joined).value();
  const bool leads = world.rank() == 0;
  std::vector<std::int32_t> tokens;
  std::size_t of_text = 0;
  std::string error;
  if (!check_ranks(options, world.size(), error) ||
      !read_tokens(options.common, tokens, of_text, error)) {
    if (leads) std::fprintf(stderr, "moe_layer_gpu: %s\n", error.c_str());
    return kBadArguments;
  }
  const int device = world.rank() % gpus;
  if (leads) {
    std::printf("Example 02: example 01 on GPUs, %s, %s\n", options.layout.c_str(),
                options.graph ? "one graph per layer" : "kernel by kernel");
    std::printf("GPUs    %s; rank 0 sees %d, and %d ranks take them in turn\n",
                name_of_gpu(device).c_str(), gpus, world.size());
    print_header(options.common, of_text);
  }
  Progress progress(leads);
  Runs runs;
  for (const int ranks : sizes_to_run(options, world.size())) {
    if (sluice::Status status = run_over(world, ranks, options, device, tokens, progress, runs);
        !status) {
      std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), ranks, status.to_string().c_str());
      return kFailed;
    }
  }
  if (sluice::Status status = world.leave(std::chrono::seconds(30)); !status) {
    std::fprintf(stderr, "rank %d: leave: %s\n", world.rank(), status.to_string().c_str());
    return kFailed;
  }
  return leads ? compare_and_print(options, tokens, runs, progress) : 0;
}

int run(int argument_count, char** arguments) {
  GpuOptions options;
  options.common.text = MOE_DEFAULT_TEXT;
  std::string error;
  if (!parse_gpu_options({arguments + 1, arguments + argument_count}, options, error)) {
    std::fprintf(stderr, "moe_layer_gpu: %s\n\n%s", error.c_str(), gpu_usage().c_str());
    return kBadArguments;
  }
  if (options.common.help) {
    std::printf("%s", gpu_usage().c_str());
    return 0;
  }
  const int gpus = count_gpus();
  if (gpus == 0) {
    std::puts("skipped: no GPU in this machine");
    return kSkipped;
  }
  if (started_by_launcher()) return run_rank(sluice::World::from_environment(), options, gpus);
  if (options.common.ranks == 0) options.common.ranks = std::min(gpus, kRanksMax);
  const int ranks = options.common.ranks;
  const std::string rendezvous = "unix:sluice-moe-layer-gpu-" + std::to_string(getpid());
  return run_processes(ranks, [&](int rank) {
    return run_rank(sluice::World::join(rank, ranks, rendezvous), options, gpus);
  });
}

}  // namespace
}  // namespace moe

int main(int argument_count, char** arguments) {
  return moe::run(argument_count, arguments);
}
