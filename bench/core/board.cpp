// SPDX-License-Identifier: MIT
#include "board.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
/// Between two looks of a rank that waits asleep.
constexpr std::chrono::microseconds kNap(200);

}  // namespace

std::size_t Board::Form::bytes() const noexcept {
  const auto count = [](int value) { return static_cast<std::size_t>(value); };
  return kHeaderBytes +
         sizeof(double) * (count(series) * count(iterations) + count(singles) + count(network));
}

Board::Board(std::vector<std::byte*> pieces, int rank, Form form, double deadline_s,
             std::function<int()> dead_peer, BoardBridge* bridge)
    : pieces_(std::move(pieces)),
      rank_(rank),
      form_(form),
      deadline_s_(deadline_s),
      dead_peer_(std::move(dead_peer)),
      bridge_(bridge) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  // Zeroed memory is a fresh header: nothing is constructed, since peers may already be using it.
  spins_ = get_nprocs() >= (bridge != nullptr ? bridge->ranks_here() : ranks()) ? 20000 : 0;
}

Board::Header& Board::header(int rank) const noexcept {
  return *std::launder(reinterpret_cast<Header*>(pieces_[static_cast<std::size_t>(rank)]));
}

RankRecord& Board::record(int rank) const noexcept {
  return header(rank).record;
}

double* Board::numbers(int rank) const noexcept {
  return reinterpret_cast<double*>(pieces_[static_cast<std::size_t>(rank)] + kHeaderBytes);
}

std::span<double> Board::samples(int rank, int series) const noexcept {
  const std::size_t count = static_cast<std::size_t>(form_.iterations);
  return {numbers(rank) + static_cast<std::size_t>(series) * count, count};
}

std::span<double> Board::singles(int rank) const noexcept {
  const std::size_t samples =
      static_cast<std::size_t>(form_.series) * static_cast<std::size_t>(form_.iterations);
  return {numbers(rank) + samples, static_cast<std::size_t>(form_.singles)};
}

std::span<double> Board::network(int rank) const noexcept {
  const std::span<double> before = singles(rank);
  return {before.data() + before.size(), static_cast<std::size_t>(form_.network)};
}

Status Board::look_round(base::Deadline deadline) const {
  const int dead = dead_peer_ ? dead_peer_() : -1;
  // Pairs with the release store in fail(). After the look at the dead: who gives up says so, and ends then.
  if (gate().failed.load(std::memory_order_acquire) != 0) return failure();
  if (dead >= 0) {
    return Status(
        StatusCode::unavailable,
        fmt::format("rank {} ended while rank {} waited for the common start", dead, rank_));
  }
  if (!deadline.expired()) return {};
  return Status(StatusCode::deadline_exceeded,
                fmt::format("rank {} waited {} s for the common start; {} of {} ranks came", rank_,
                            deadline_s_, gate().arrived.load(std::memory_order_relaxed),
                            bridge_ != nullptr ? bridge_->ranks_here() : ranks()));
}

template <typename Done>
Status Board::wait(const Done& done, const std::function<void()>& meanwhile) const {
  const base::Deadline deadline = deadline_of(deadline_s_);
  for (int turn = 0; !done(); ++turn) {
    if (meanwhile) {
      meanwhile();
    } else {
      if (turn < spins_) continue;
      sched_yield();
      if (turn % 256 != 0) continue;
    }
    if (Status status = look_round(deadline); !status) return status;
  }
  return {};
}

void Board::let_go() const noexcept {
  gate().arrived.store(0, std::memory_order_relaxed);
  gate().start_ns.store(base::now_ns(), std::memory_order_relaxed);
  // Pairs with the acquire loads of the waiting ranks in pass(). Of this rank's own stores it is the last one.
  gate().generation.fetch_add(1, std::memory_order_release);
}

Result<std::int64_t> Board::pass(const std::function<void()>& meanwhile) {
  // Acquire: the count of the last generation was reset before its release.
  const std::uint32_t generation = gate().generation.load(std::memory_order_acquire);
  // Acquire and release: whatever a rank did before arriving happened before anybody's start.
  const auto arrived = static_cast<int>(gate().arrived.fetch_add(1, std::memory_order_acq_rel)) + 1;
  if (bridge_ != nullptr && rank_ == bridge_->leader()) {
    Status status = wait(
        [&] {
          // Pairs with the increments of the node's others.
          return gate().arrived.load(std::memory_order_acquire) ==
                 static_cast<std::uint32_t>(bridge_->ranks_here());
        },
        meanwhile);
    if (status) status = cross(meanwhile);
    if (!status) {
      bridge_->fail();
      return status;
    }
    let_go();
  } else if (bridge_ == nullptr && arrived == ranks()) {
    let_go();
  } else {
    const Status status = wait(
        [&] { return gate().generation.load(std::memory_order_acquire) != generation; }, meanwhile);
    if (!status) return status;
  }
  return gate().start_ns.load(std::memory_order_relaxed);
}

// All of this node have come.
Status Board::cross(const std::function<void()>& meanwhile) const {
  const base::Deadline deadline = deadline_of(deadline_s_);
  return bridge_->meet([&] {
    if (meanwhile) meanwhile();
    return look_round(deadline);
  });
}

Status Board::spread() {
  if (bridge_ == nullptr) return {};
  std::vector<std::span<std::byte>> pieces;
  for (std::byte* piece : pieces_) {
    // Behind the gate, which is the node's own.
    pieces.emplace_back(piece + sizeof(Gate), form_.bytes() - sizeof(Gate));
  }
  return bridge_->spread(pieces);
}

void Board::sleep() {
  std::this_thread::sleep_for(kNap);
}

void Board::fail(const Status& status) noexcept {
  Header& own = header(rank_);
  const std::string& message = status.message();
  const std::size_t length = std::min(message.size(), sizeof(own.record.error) - 1);
  std::memcpy(own.record.error, message.data(), length);
  own.record.error[length] = '\0';
  std::uint32_t nobody = 0;
  // Release: the message is complete for whoever sees the number.
  gate().failed.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1,
                                        std::memory_order_release, std::memory_order_relaxed);
  if (bridge_ != nullptr && rank_ == bridge_->leader()) bridge_->fail();
}

Status Board::failure() const {
  const int rank = static_cast<int>(gate().failed.load(std::memory_order_acquire)) - 1;
  return Status(StatusCode::unavailable,
                fmt::format("rank {} gave up: {}", rank, record(rank).error));
}

}  // namespace sluice::bench
