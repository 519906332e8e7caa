// SPDX-License-Identifier: MIT
#include "engine/cuda/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

#include "trace/timeline.hpp"

namespace sluice::engine::cuda {
namespace {

/// Events of a warp in most launches.
constexpr std::size_t kUsualEvents = 8;
constexpr std::size_t kLaunchesMax = 64;
/// Tracks are numbered by blocks and, within a block, by warps.
constexpr int kTracksPerBlock = 100;
static_assert(kBlockWarps <= kTracksPerBlock);

const char* name_of(Role role) noexcept {
  switch (role) {
    case Role::herald: return "herald";
    case Role::keeper: return "keeper";
    case Role::worker: return "worker";
  }
  return "unknown";
}

/// Adds what one warp did in one launch.
void add_warp(std::span<const std::uint64_t> words, const char* operation, int track,
              trace::Timeline& timeline) {
  const std::uint64_t head = words[0];
  const auto events = static_cast<std::size_t>(head & 15U);
  if (events == 0 || (words[1] & 7U) != Recording::kStart) return;
  const auto time_of = [](std::uint64_t word) { return static_cast<std::int64_t>(word & ~7ULL); };
  const trace::Actor actor{track, name_of(static_cast<Role>(head >> 4 & 15U)),
                           static_cast<int>(words[Recording::kEventsMax + 1])};
  for (std::size_t i = 2; i <= events; ++i) {
    if ((words[i] & 7U) == Recording::kStart) continue;  // Nothing was done between two launches.
    timeline.add(static_cast<trace::Phase>(words[i] & 7U), operation, head >> 8,
                 time_of(words[i - 1]), time_of(words[i]), actor);
  }
}

}  // namespace

std::size_t Profile::words() const noexcept {
  return static_cast<std::size_t>(protocol::kKinds * recording_.launches * recording_.blocks) *
         kBlockWarps * Recording::kWords;
}

Recording Profile::start(memory::DevicePool& pool, std::size_t events_max, int blocks) {
  recording_ = {};
  if (events_max == 0) return recording_;
  recording_.blocks = std::clamp(blocks, 1, kBlocksMax);
  const std::size_t usual =
      static_cast<std::size_t>(recording_.blocks) * kBlockWarps * kUsualEvents;
  // A power of two, since an epoch's place is a remainder of its lower bits.
  recording_.launches = static_cast<int>(std::bit_floor(
      std::clamp<std::size_t>(events_max / (usual * protocol::kKinds), 1, kLaunchesMax)));
  const std::size_t bytes = words() * sizeof(std::uint64_t);
  std::shared_ptr<void> memory = pool.take(bytes);
  if (memory == nullptr || !pool.write(memory.get(), nullptr, bytes).ok()) return recording_;
  recording_.words = static_cast<std::uint64_t*>(memory.get());
  memory_.push_back(std::move(memory));
  return recording_;
}

Status Profile::write(memory::DevicePool& pool, const std::string& path, int rank) const {
  trace::Timeline timeline;
  if (recording_.words == nullptr) {
    if (recording_.launches == 0) return timeline.write(path, rank);
    return {StatusCode::out_of_memory,
            fmt::format("no profile: no {} bytes of GPU memory", words() * sizeof(std::uint64_t))};
  }
  std::vector<std::uint64_t> seen(words());
  if (Status status =
          pool.write(seen.data(), recording_.words, seen.size() * sizeof(std::uint64_t));
      !status.ok()) {
    return status;
  }
  timeline.start(seen.size());
  std::span<const std::uint64_t> rest(seen);
  for (const char* operation : {"dispatch", "combine"}) {
    for (int launch = 0; launch < recording_.launches; ++launch) {
      for (int block = 0; block < recording_.blocks; ++block) {
        for (int warp = 0; warp < kBlockWarps; ++warp) {
          add_warp(rest.first(Recording::kWords), operation, block * kTracksPerBlock + warp,
                   timeline);
          rest = rest.subspan(Recording::kWords);
        }
      }
    }
  }
  return timeline.write(path, rank);
}

}  // namespace sluice::engine::cuda
