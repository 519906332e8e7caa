// SPDX-License-Identifier: MIT
#include "bare_way.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cstring>
#include <utility>
#include <vector>

#include "bare_endpoint.hpp"
#include "base/deadline.hpp"
#include "gpu.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

using transport::Chunk;
using transport::Event;
using transport::Posted;

constexpr transport::Region kBareRegion = 0;

/// What rank `from` sends at a place: no two words of all ranks are alike.
std::uint64_t sent_word(int from, std::uint64_t at) noexcept {
  return (static_cast<std::uint64_t>(from + 1) << 48 | at) * 0x9E3779B97F4A7C15U;
}

/// Of the operation the lowest bit will do: see BareWay::Come.
std::uint32_t immediate_of(int number, std::uint64_t operation) noexcept {
  return static_cast<std::uint32_t>(number) << 1 | static_cast<std::uint32_t>(operation % 2);
}

std::vector<Shuttle::Piece> pieces_of(const std::vector<BarePlan::Piece>& pieces) {
  std::vector<Shuttle::Piece> all;
  for (const BarePlan::Piece& piece : pieces) all.push_back({piece.offset, piece.bytes});
  return all;
}

}  // namespace

BareWay::BareWay(bootstrap::Group& group, std::unique_ptr<Shuttle> shuttle, double deadline_s)
    : group_(group), shuttle_(std::move(shuttle)), deadline_s_(deadline_s) {}

Result<std::unique_ptr<BareWay>> BareWay::open(bootstrap::Group& group, Place& place,
                                               std::uint64_t out_bytes, std::uint64_t in_bytes,
                                               double deadline_s) {
  Result<std::unique_ptr<Shuttle>> shuttle = place.shuttle(out_bytes, in_bytes, deadline_s);
  Status status = shuttle.status();
  if (status && *shuttle == nullptr) {
    status = Status(StatusCode::invalid_argument, "the bare way: no device apart from the host");
  }
  if (status) {
    std::vector<std::byte> sent(out_bytes);
    for (std::uint64_t at = 0; at + 8 <= out_bytes; at += 8) {
      const std::uint64_t word = sent_word(group.rank(), at);
      std::memcpy(sent.data() + at, &word, 8);
    }
    status = (*shuttle)->fill(sent);
  }
  if (status = group.agree(status, deadline_of(deadline_s)); !status) return status;
  std::unique_ptr<BareWay> way(new BareWay(group, std::move(shuttle).value(), deadline_s));
  auto endpoint = bare_endpoint(group, place.pci_address(), deadline_s,
                                [&](const transport::Traits& /*traits*/) {
                                  return Result<std::span<std::byte>>(way->shuttle_->memory());
                                });
  if (!endpoint) return endpoint.status();
  way->endpoint_ = std::move(endpoint).value();
  return way;
}

Result<double> BareWay::time(Board& board, const BarePlan& plan, int operations) {
  const auto met = [&](const std::function<void()>& meanwhile) {
    const Result<std::int64_t> passed = board.pass(meanwhile);
    return passed ? Status() : passed.status();
  };
  if (Status status = met({}); !status) return status;
  const std::uint64_t first = shuttle_->last() + 1;
  Status status = shuttle_->launch(pieces_of(plan.out), pieces_of(plan.in),
                                   kHeadOperations + operations, operations);
  if (status) status = carry(plan, first, shuttle_->last());
  if (!status) return status;
  Result<double> us = shuttle_->time();
  if (!us) return us;
  // Nothing moves while nobody polls, also what others wait for.
  Status polled;
  status = met([&] {
    if (Status now = poll(plan); !now && polled) polled = now;
    ::sched_yield();
  });
  if (status) status = polled;
  if (status) status = check(plan);
  return status ? us : Result<double>(status);
}

Status BareWay::carry(const BarePlan& plan, std::uint64_t first, std::uint64_t last) {
  const base::Deadline deadline = deadline_of(deadline_s_);
  come_[first % 2] = {first, 0};
  come_[(first + 1) % 2] = {first + 1, 0};
  std::uint64_t putting = first;
  std::uint64_t coming = first;
  for (unsigned turn = 1; putting <= last || coming <= last || on_their_way_ > 0; ++turn) {
    if (putting <= last) {
      const Result<bool> all = put(plan, putting);
      if (!all) return all.status();
      if (*all) ++putting;
    }
    if (Status status = poll(plan); !status) return status;
    if (Come& come = come_[coming % 2];
        coming <= last && come.pieces == static_cast<int>(plan.in.size())) {
      come = {come.operation + 2, 0};
      ++coming;
    }
    if (turn % 1024 != 0) continue;
    ::sched_yield();
    if (deadline.expired()) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("the bare way: rank {} waited {} s, putting operation {} of {}",
                                group_.rank(), deadline_s_, putting, last));
    }
  }
  return {};
}

Result<bool> BareWay::put(const BarePlan& plan, std::uint64_t operation) {
  for (; put_ < plan.out.size(); ++put_) {
    if (!shuttle_->is_out(static_cast<int>(put_), operation)) return false;
    const BarePlan::Piece& piece = plan.out[put_];
    Chunk chunk;
    chunk.peer = piece.peer;
    chunk.from = chunk.to = kBareRegion;
    chunk.from_offset = shuttle_->out_at(operation) + piece.offset;
    chunk.to_offset = shuttle_->in_at(operation) + piece.opposite;
    chunk.bytes = piece.bytes;
    chunk.immediate = immediate_of(piece.number, operation);
    switch (endpoint_->put(chunk)) {
      case Posted::yes: ++on_their_way_; break;
      case Posted::busy: return false;
      case Posted::gone:
        return Status(
            StatusCode::unavailable,
            fmt::format("the bare way: rank {} is gone for rank {}", piece.peer, group_.rank()));
    }
  }
  put_ = 0;
  return true;
}

Status BareWay::poll(const BarePlan& plan) {
  std::array<Event, 16> events;
  const std::size_t count = endpoint_->poll(events);
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = events[i];
    switch (event.kind) {
      case Event::Kind::sent: --on_their_way_; break;
      case Event::Kind::arrived: {
        const auto number = static_cast<std::size_t>(event.immediate >> 1);
        Come& come = come_[event.immediate % 2];
        shuttle_->has_come(come.pieces++, static_cast<int>(number), come.operation);
        endpoint_->took(plan.in[number].peer, 1);
        break;
      }
      case Event::Kind::lost:
        return Status(
            StatusCode::unavailable,
            fmt::format("the bare way: rank {} is lost for rank {}", event.peer, group_.rank()));
    }
  }
  return {};
}

Status BareWay::check(const BarePlan& plan) {
  std::vector<std::byte> came(plan.in_bytes);
  if (Status status = shuttle_->read(came); !status) return status;
  for (const BarePlan::Piece& piece : plan.in) {
    for (std::uint64_t at = 0; at < piece.bytes; at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, came.data() + piece.offset + at, sizeof(word));
      if (word == (at == 0 ? shuttle_->last() : sent_word(piece.peer, piece.opposite + at)))
        continue;
      return {StatusCode::internal,
              fmt::format("the bare way: byte {} of what rank {} got of rank {} is wrong",
                          piece.offset + at, group_.rank(), piece.peer)};
    }
  }
  return {};
}

}  // namespace sluice::bench
