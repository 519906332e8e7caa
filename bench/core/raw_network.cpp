// SPDX-License-Identifier: MIT
#include "raw_network.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "bare_endpoint.hpp"
#include "base/deadline.hpp"
#include "relay/relay.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

using transport::Chunk;
using transport::Event;
using transport::Posted;

/// From which a rank puts, and into which every node's ranks put, in a circle: at least more than most processors keep close
/// by; at most what is far more than any does.
constexpr std::uint64_t kAreaBytesMin = 8 << 20;
constexpr std::uint64_t kAreaBytesMax = 64 << 20;
/// Chunks to one peer before the next one's turn, as in the relay.
constexpr int kTurn = 4;
constexpr transport::Region kRegion = 0;

}  // namespace

RawNetwork::RawNetwork(bootstrap::Group& group, std::uint64_t bytes, double deadline_s)
    : group_(group),
      deadline_s_(deadline_s),
      area_bytes_(std::clamp(bytes, kAreaBytesMin, kAreaBytesMax)),
      places_(static_cast<std::size_t>(group.size())),
      took_(places_.size()) {}

Result<std::unique_ptr<RawNetwork>> RawNetwork::open(bootstrap::Group& group,
                                                     const std::string& gpu, std::uint64_t bytes,
                                                     double deadline_s) {
  std::unique_ptr<RawNetwork> network(new RawNetwork(group, bytes, deadline_s));
  auto endpoint = bare_endpoint(group, gpu, deadline_s, [&](const transport::Traits& traits) {
    return network->make_memory(traits);
  });
  if (!endpoint) return endpoint.status();
  network->endpoint_ = std::move(endpoint).value();
  return network;
}

Result<std::span<std::byte>> RawNetwork::make_memory(const transport::Traits& traits) {
  chunk_bytes_ = relay::chunk_bytes(group_.network()->relay, traits);
  const std::uint64_t areas = static_cast<std::uint64_t>(nodes().nodes()) + 1;
  area_bytes_ = (area_bytes_ + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
  Result<Buffer> memory = Buffer::make(areas * area_bytes_, Buffer::Pages::huge);
  if (!memory) return memory.status();
  memory_ = std::move(memory).value();
  std::memset(memory_.data(), 1, memory_.bytes());  // Pages are taken before the clock runs.
  return std::span(memory_.data(), memory_.bytes());
}

Result<std::uint64_t> RawNetwork::put(int peer, std::uint64_t bytes, std::uint64_t done) {
  const auto own_node = static_cast<std::uint64_t>(nodes().node_of(group_.rank()));
  Chunk chunk;
  chunk.peer = peer;
  chunk.from = chunk.to = kRegion;
  chunk.from_offset = place_of(peer);
  chunk.to_offset = (own_node + 1) * area_bytes_ + place_of(peer);
  chunk.bytes = static_cast<std::uint32_t>(std::min(bytes - done, chunk_bytes_));
  chunk.immediate = static_cast<std::uint32_t>(group_.rank());
  switch (endpoint_->put(chunk)) {
    case Posted::yes: break;
    case Posted::busy: return std::uint64_t{0};
    case Posted::gone:
      return Status(StatusCode::unavailable,
                    fmt::format("raw puts from rank {}: rank {} is gone", group_.rank(), peer));
  }
  ++on_their_way_;
  return std::uint64_t{chunk.bytes};
}

Result<bool> RawNetwork::look() {
  std::array<Event, 64> events;
  const std::size_t count = endpoint_->poll(events);
  for (std::size_t i = 0; i < count; ++i) {
    switch (events[i].kind) {
      case Event::Kind::sent: --on_their_way_; break;
      case Event::Kind::arrived:
        ++arrived_;
        ++took_[events[i].immediate];
        break;
      case Event::Kind::lost:
        return Status(StatusCode::unavailable, fmt::format("raw puts from rank {}: rank {} is lost",
                                                           group_.rank(), events[i].peer));
    }
  }
  for (std::size_t peer = 0; count > 0 && peer < took_.size(); ++peer) {
    if (const int took = std::exchange(took_[peer], 0); took > 0) {
      endpoint_->took(static_cast<int>(peer), took);
    }
  }
  return count > 0;
}

template <typename Done>
Status RawNetwork::wait(const Done& done, const char* what) {
  const base::Deadline deadline = deadline_of(deadline_s_);
  while (!done()) {
    const Result<bool> any = look();
    if (!any) return any.status();
    if (*any) continue;
    ::sched_yield();
    if (deadline.expired()) {
      return Status(StatusCode::deadline_exceeded, fmt::format("raw puts: rank {} waited {} s {}",
                                                               group_.rank(), deadline_s_, what));
    }
  }
  return {};
}

Status RawNetwork::exchange(std::span<const std::uint64_t> bytes, int expected) {
  const base::Deadline deadline = deadline_of(deadline_s_);
  std::vector<std::uint64_t> done(bytes.size());
  bool left = true;
  while (left) {
    left = false;
    bool any = false;
    // Rotated, so that not all ranks begin with the same peer.
    for (int step = 1; step < group_.size(); ++step) {
      const int peer = (group_.rank() + step) % group_.size();
      const std::uint64_t all = bytes[static_cast<std::size_t>(peer)];
      std::uint64_t& put_already = done[static_cast<std::size_t>(peer)];
      for (int turn = 0; turn < kTurn && put_already < all; ++turn) {
        const Result<std::uint64_t> more = put(peer, all, put_already);
        if (!more) return more.status();
        if (*more == 0) break;
        put_already += *more;
        place_of(peer) = (place_of(peer) + chunk_bytes_) % area_bytes_;
        any = true;
      }
      left |= put_already < all;
    }
    const Result<bool> happened = look();
    if (!happened) return happened.status();
    if (any || *happened) continue;
    ::sched_yield();
    if (deadline.expired()) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("raw puts: rank {} could not put all it had to within {} s",
                                group_.rank(), deadline_s_));
    }
  }
  const Status status = wait([&] { return arrived_ >= expected; }, "for chunks to arrive");
  arrived_ -= expected;
  return status;
}

Status RawNetwork::put_whole(int peer, std::uint64_t bytes) {
  Status failed;
  const Status status = wait(
      [&] {
        const Result<std::uint64_t> put_bytes = put(peer, bytes, 0);
        failed = put_bytes.status();
        return !failed || *put_bytes > 0;
      },
      "to put a chunk");
  return status ? failed : status;
}

Status RawNetwork::ping_pong(int peer, std::uint64_t bytes, int times, bool leads) {
  for (int time = 0; time < times; ++time) {
    if (leads) {
      if (Status status = put_whole(peer, bytes); !status) return status;
    }
    if (Status status = wait([&] { return arrived_ > 0; }, "for an answer"); !status) return status;
    --arrived_;
    if (leads) continue;
    if (Status status = put_whole(peer, bytes); !status) return status;
  }
  return {};
}

Status RawNetwork::poll() {
  const Result<bool> any = look();
  if (any && !*any) ::sched_yield();
  return any.status();
}

Status RawNetwork::settle() {
  return wait([&] { return on_their_way_ == 0; }, "for its own chunks to leave");
}

}  // namespace sluice::bench
