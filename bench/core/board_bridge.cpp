// SPDX-License-Identifier: MIT
#include "board_bridge.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bare_endpoint.hpp"
#include "base/deadline.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

using transport::Event;
using transport::Posted;

// What a leader says, and who: an event of an arrival names no sender.
constexpr std::uint32_t word_of(int leader, bool failed) {
  return static_cast<std::uint32_t>(2 * leader + (failed ? 1 : 0));
}

}  // namespace

BoardBridge::BoardBridge(bootstrap::Group& group, double deadline_s)
    : group_(group),
      deadline_s_(deadline_s),
      leader_(group.nodes().ranks_of(group.nodes().node_of(group.rank())).front()),
      memory_(std::make_unique<std::array<std::byte, 64>>()),
      came_(static_cast<std::size_t>(group.size())) {
  for (int node = 0; node < group.nodes().nodes(); ++node) {
    leaders_.push_back(group.nodes().ranks_of(node).front());
  }
}

Result<std::unique_ptr<BoardBridge>> BoardBridge::open(bootstrap::Group& group, double deadline_s) {
  std::unique_ptr<BoardBridge> bridge(new BoardBridge(group, deadline_s));
  auto endpoint = bare_endpoint(group, "", deadline_s, [&](const transport::Traits& /*traits*/) {
    return Result<std::span<std::byte>>(std::span<std::byte>(*bridge->memory_));
  });
  if (!endpoint) return endpoint.status();
  bridge->endpoint_ = std::move(endpoint).value();
  return bridge;
}

int BoardBridge::ranks_here() const noexcept {
  return static_cast<int>(group_.nodes().ranks_of(group_.nodes().node_of(leader_)).size());
}

bool BoardBridge::here(int rank) const noexcept {
  return group_.nodes().together(rank, leader_);
}

Status BoardBridge::look() {
  std::array<Event, 16> events;
  const std::size_t count = endpoint_->poll(events);
  int lost = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = events[i];
    if (event.kind == Event::Kind::lost) lost = event.peer;
    if (event.kind != Event::Kind::arrived) continue;
    const auto leader = static_cast<int>(event.immediate / 2);
    if (static_cast<std::size_t>(leader) >= came_.size()) continue;  // Of no rank.
    ++came_[static_cast<std::size_t>(leader)];
    if (event.immediate % 2 != 0) failed_ = leader;
    endpoint_->took(leader, 1);
  }
  if (count == 0) ::sched_yield();
  // Who gives up says so, and ends then.
  if (failed_ >= 0) {
    return Status(StatusCode::unavailable,
                  fmt::format("a rank of node {} gave up", group_.nodes().node_of(failed_)));
  }
  if (lost < 0) return {};
  return Status(StatusCode::unavailable,
                fmt::format("rank {} is lost to rank {}", lost, group_.rank()));
}

Status BoardBridge::put(int leader, bool failed, const std::function<Status()>& between) {
  transport::Chunk chunk;
  chunk.peer = leader;
  chunk.immediate = word_of(group_.rank(), failed);
  for (;;) {
    const Posted posted = endpoint_->put(chunk);
    if (posted == Posted::yes) return {};
    if (posted == Posted::gone) {
      return Status(StatusCode::unavailable, fmt::format("rank {} is gone", leader));
    }
    if (Status status = look(); !status) return status;
    if (Status status = between(); !status) return status;
  }
}

Status BoardBridge::wait_for(int leader, std::uint64_t times,
                             const std::function<Status()>& between) {
  while (came_[static_cast<std::size_t>(leader)] < times) {
    if (Status status = look(); !status) return status;
    if (Status status = between(); !status) return status;
  }
  return {};
}

// Every leader tells the first one, which tells all.
Status BoardBridge::meet(const std::function<Status()>& between) {
  ++times_;
  const bool first = group_.rank() == leaders_.front();
  if (!first) {
    if (Status status = put(leaders_.front(), false, between); !status) return status;
    return wait_for(leaders_.front(), times_, between);
  }
  for (std::size_t node = 1; node < leaders_.size(); ++node) {
    if (Status status = wait_for(leaders_[node], times_, between); !status) return status;
  }
  for (std::size_t node = 1; node < leaders_.size(); ++node) {
    if (Status status = put(leaders_[node], false, between); !status) return status;
  }
  return {};
}

// As far as it goes: who does not hear of it has its deadline.
void BoardBridge::fail() noexcept {
  const base::Deadline deadline = base::Deadline::after(std::chrono::seconds(1));
  const auto in_time = [&] {
    return deadline.expired() ? Status(StatusCode::deadline_exceeded, "nobody listens") : Status();
  };
  for (const int leader : leaders_) {
    if (leader != group_.rank()) static_cast<void>(put(leader, true, in_time));
  }
  // Nothing moves while nobody polls.
  const auto is_told = [&](int leader) {
    if (leader == group_.rank()) return true;
    const std::optional<std::uint64_t> mark = endpoint_->mark(leader);
    return mark && endpoint_->is_out(leader, *mark);
  };
  while (!deadline.expired() && !std::all_of(leaders_.begin(), leaders_.end(), is_told)) {
    static_cast<void>(look());
  }
}

Status BoardBridge::spread(std::span<const std::span<std::byte>> pieces) {
  const std::span<const std::byte> own = pieces[static_cast<std::size_t>(group_.rank())];
  const auto all =
      group_.all_gather(std::string_view(reinterpret_cast<const char*>(own.data()), own.size()),
                        deadline_of(deadline_s_));
  if (!all) return all.status();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::string& theirs = (*all)[static_cast<std::size_t>(rank)];
    if (theirs.size() != own.size()) {
      return Status(StatusCode::mismatch,
                    fmt::format("rank {} left {} bytes, rank {} {}: were their options the same?",
                                rank, theirs.size(), group_.rank(), own.size()));
    }
    if (here(rank)) continue;
    std::memcpy(pieces[static_cast<std::size_t>(rank)].data(), theirs.data(), theirs.size());
  }
  return {};
}

}  // namespace sluice::bench
