// SPDX-License-Identifier: MIT
//
// Chapter 1: an MoE layer over several ranks. README.md beside this file tells the story; stack.cpp
// is where Sluice is used.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.hpp>

#include "options.hpp"
#include "processes.hpp"
#include "reference.hpp"
#include "report.hpp"
#include "stack.hpp"
#include "tokeniser.hpp"

namespace moe {
namespace {

template <typename T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Every rank's values, step by step and within a step rank by rank: the order of the tokens.
sluice::Result<std::vector<Bf16>> gather_rows(sluice::World& world, const Options& options,
                                              const std::vector<Bf16>& mine) {
  auto parts = world.all_gather(bytes_of(mine));
  if (!parts) return parts.status();
  std::vector<Bf16> rows;
  for (int step = 0; step < options.steps; ++step) {
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::string& part = (*parts)[static_cast<std::size_t>(rank)];
      const std::size_t values =
          part.size() / sizeof(Bf16) / static_cast<std::size_t>(options.steps);
      const std::size_t old = rows.size();
      rows.resize(old + values);
      if (values == 0) continue;
      std::memcpy(rows.data() + old,
                  part.data() + static_cast<std::size_t>(step) * values * sizeof(Bf16),
                  values * sizeof(Bf16));
    }
  }
  return rows;
}

sluice::Status gather_times(sluice::World& world, std::vector<double>& times) {
  auto parts = world.all_gather(bytes_of(times));
  if (!parts) return parts.status();
  times.clear();
  for (const std::string& part : *parts) {
    std::vector<double> values(part.size() / sizeof(double));
    std::memcpy(values.data(), part.data(), values.size() * sizeof(double));
    times.insert(times.end(), values.begin(), values.end());
  }
  return {};
}

/// Collective: brings what every rank has to all of them.
sluice::Result<GatheredRun> gather(sluice::World& world, const Options& options,
                                   RankResult result) {
  GatheredRun run;
  run.ranks = world.size();
  auto final_rows = gather_rows(world, options, result.final);
  if (!final_rows) return final_rows.status();
  run.hash = hash_of(*final_rows);
  for (std::vector<Bf16>& update : result.updates) {
    auto rows = gather_rows(world, options, update);
    if (!rows) return rows.status();
    run.updates.push_back(std::move(rows).value());
    update = {};
  }
  for (LayerTimes& times : result.times) {
    for (auto* list : {&times.dispatch, &times.experts, &times.combine, &times.combine_single}) {
      if (sluice::Status status = gather_times(world, *list); !status) return status;
    }
  }
  run.times = std::move(result.times);
  return run;
}

/// Runs the stack over the first `ranks` ranks of the world; the others wait at the next split.
sluice::Status run_over(sluice::World& world, int ranks, const Options& options,
                        const std::vector<std::int32_t>& tokens, Progress& progress,
                        std::vector<GatheredRun>& runs) {
  const bool takes_part = world.rank() < ranks;
  auto part = world.split(takes_part ? 0 : -1, world.rank());
  if (!takes_part) return {};
  if (!part) return part.status();
  const std::string what =
      "Sluice over " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  const int layers = options.model.layers;
  auto result = run_stack(*part, options, tokens, [&](int step, int layer) {
    progress.at(what + ", layers run", step * layers + layer, options.steps * layers);
  });
  if (!result) return result.status();
  auto run = gather(*part, options, std::move(result).value());
  if (!run) return run.status();
  progress.done(what);
  if (world.rank() == 0) runs.push_back(std::move(run).value());
  return part->leave(std::chrono::seconds(30));
}

int run_rank(sluice::Result<sluice::World> joined, const Options& options) {
  if (!joined) {
    std::fprintf(stderr, "cannot join: %s\n", joined.status().to_string().c_str());
    return 1;
  }
  sluice::World world = std::move(joined).value();
  const bool leads = world.rank() == 0;
  std::string text;
  std::string error;
  if (!read_text(options.text, text, error)) {
    if (leads) std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  const std::vector<std::int32_t> text_tokens = tokenise(text, options.model.vocabulary);
  if (text_tokens.empty()) {
    if (leads) std::fprintf(stderr, "'%s' has no words\n", options.text.c_str());
    return 1;
  }
  const std::vector<std::int32_t> tokens =
      repeat_to(text_tokens,
                static_cast<std::size_t>(options.steps) * static_cast<std::size_t>(options.tokens));
  if (leads) print_header(options, text_tokens.size());
  Progress progress(leads);

  // The whole world first, then the smaller numbers of ranks that must give the same bits.
  std::vector<int> sizes = {world.size()};
  for (const int ranks : {4, 2, 1}) {
    if (ranks < world.size()) sizes.push_back(ranks);
  }
  std::vector<GatheredRun> runs;
  for (const int ranks : sizes) {
    if (sluice::Status status = run_over(world, ranks, options, tokens, progress, runs); !status) {
      std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), ranks, status.to_string().c_str());
      return 1;
    }
  }
  if (sluice::Status status = world.leave(std::chrono::seconds(30)); !status) {
    std::fprintf(stderr, "rank %d: leave: %s\n", world.rank(), status.to_string().c_str());
    return 1;
  }
  if (!leads) return 0;

  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::string what = "one process, plain loops";
  const Reference reference = run_reference(options.model, tokens, threads, [&](int layer) {
    progress.at(what + ", layers run", layer, options.model.layers);
  });
  progress.done(what);
  print_latencies(options, runs.front());
  return print_verdict(reference, runs) ? 0 : 1;
}

int run(int argument_count, char** arguments) {
  Options options;
  options.text = MOE_DEFAULT_TEXT;
  std::string error;
  if (!parse_options({arguments + 1, arguments + argument_count}, options, error)) {
    std::fprintf(stderr, "moe_layer: %s\n\n%s", error.c_str(), usage().c_str());
    return 2;
  }
  if (options.help) {
    std::printf("%s", usage().c_str());
    return 0;
  }
  if (started_by_launcher()) return run_rank(sluice::World::from_environment(), options);
  const std::string rendezvous = "unix:sluice-moe-layer-" + std::to_string(getpid());
  return run_processes(options.ranks, [&options, &rendezvous](int rank) {
    return run_rank(sluice::World::join(rank, options.ranks, rendezvous), options);
  });
}

}  // namespace
}  // namespace moe

int main(int argument_count, char** arguments) {
  return moe::run(argument_count, arguments);
}
