// SPDX-License-Identifier: MIT
#include "gather.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace moe {
namespace {

template <typename T>
sluice::Result<std::vector<std::vector<T>>> gather(sluice::World& world,
                                                   const std::vector<T>& mine) {
  auto blobs = world.all_gather(
      std::string_view(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T)));
  if (!blobs) return blobs.status();
  std::vector<std::vector<T>> parts;
  for (const std::string& blob : *blobs) {
    std::vector<T> part(blob.size() / sizeof(T));
    if (!part.empty()) std::memcpy(part.data(), blob.data(), part.size() * sizeof(T));
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Every rank's rows, step by step and within a step rank by rank: the order of the tokens.
sluice::Result<std::vector<Bf16>> gather_rows(sluice::World& world, int steps,
                                              const std::vector<Bf16>& mine) {
  auto parts = gather(world, mine);
  if (!parts) return parts.status();
  std::vector<Bf16> rows;
  for (int step = 0; step < steps; ++step) {
    for (const std::vector<Bf16>& part : *parts) {
      const auto values = static_cast<std::ptrdiff_t>(part.size()) / steps;
      const auto begin = part.begin() + step * values;
      rows.insert(rows.end(), begin, begin + values);
    }
  }
  return rows;
}

sluice::Status keep_slowest(sluice::World& world, std::vector<double>& times) {
  auto parts = gather(world, times);
  if (!parts) return parts.status();
  for (const std::vector<double>& part : *parts) {
    for (std::size_t i = 0; i < std::min(part.size(), times.size()); ++i) {
      times[i] = std::max(times[i], part[i]);
    }
  }
  return {};
}

}  // namespace

sluice::Result<GatheredRun> gather_run(sluice::World& world, const Options& options,
                                       RankResult result) {
  GatheredRun run;
  run.ranks = world.size();
  auto final_rows = gather_rows(world, options.steps, result.final);
  if (!final_rows) return final_rows.status();
  run.hash = hash_of(*final_rows);
  for (const std::vector<Bf16>& update : result.updates) {
    auto rows = gather_rows(world, options.steps, update);
    if (!rows) return rows.status();
    run.updates.push_back(std::move(rows).value());
  }
  for (LayerTimes& times : result.times) {
    for (auto* list : {&times.dispatch, &times.experts, &times.combine, &times.combine_single}) {
      if (sluice::Status status = keep_slowest(world, *list); !status) return status;
    }
  }
  run.times = std::move(result.times);
  return run;
}

}  // namespace moe
