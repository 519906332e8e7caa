// SPDX-License-Identifier: MIT
#include "bare_plan.hpp"

#include <algorithm>

#include "shuttle.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint64_t units(std::uint64_t bytes) noexcept {
  return (bytes + Shuttle::kUnit - 1) / Shuttle::kUnit;
}

/// What one rank puts to another one.
class Parcel {
 public:
  Parcel(const BarePlan::Bytes& bytes, int from, int to, int pieces, std::uint64_t most)
      // Its answer says that the memory may be used again.
      : units_(
            std::max(units(bytes(from, to)), std::min(units(bytes(to, from)), std::uint64_t{1}))),
        each_(std::min(
            (units_ + static_cast<std::uint64_t>(pieces) - 1) / static_cast<std::uint64_t>(pieces),
            std::max(most / Shuttle::kUnit, std::uint64_t{1}))) {}

  std::uint64_t bytes() const noexcept { return units_ * Shuttle::kUnit; }
  int pieces() const noexcept {
    return units_ == 0 ? 0 : static_cast<int>((units_ + each_ - 1) / each_);
  }
  std::uint64_t offset(int piece) const noexcept {
    return static_cast<std::uint64_t>(piece) * each_ * Shuttle::kUnit;
  }
  std::uint32_t bytes(int piece) const noexcept {
    return static_cast<std::uint32_t>(std::min(each_ * Shuttle::kUnit, bytes() - offset(piece)));
  }

 private:
  std::uint64_t units_;
  std::uint64_t each_;
};

/// All ranks' parcels.
class Parcels {
 public:
  Parcels(int ranks, const BarePlan::Bytes& bytes, int pieces, std::uint64_t most)
      : ranks_(ranks), bytes_(bytes), pieces_(pieces), most_(most) {}

  /// The ranks that follow one, so that not all begin with the same.
  int after(int rank, int step) const noexcept { return (rank + step) % ranks_; }
  int before(int rank, int step) const noexcept { return (rank + ranks_ - step) % ranks_; }

  /// What comes to a rank, in the order of its numbers.
  std::vector<BarePlan::Piece> to(int rank) const {
    std::vector<BarePlan::Piece> all;
    bool any = true;
    for (int piece = 0; any; ++piece) {
      any = false;
      std::uint64_t begin = 0;  // Of a source's part.
      for (int step = 1; step < ranks_; ++step) {
        const int source = before(rank, step);
        const Parcel part = parcel(source, rank);
        if (piece < part.pieces()) {
          any = true;
          all.push_back({source, begin + part.offset(piece),
                         begin_out(source, rank) + part.offset(piece), part.bytes(piece),
                         static_cast<int>(all.size())});
        }
        begin += part.bytes();
      }
    }
    return all;
  }

 private:
  Parcel parcel(int from, int to) const { return {bytes_, from, to, pieces_, most_}; }
  std::uint64_t begin_out(int from, int to) const {
    std::uint64_t begin = 0;
    for (int step = 1; after(from, step) != to; ++step) {
      begin += parcel(from, after(from, step)).bytes();
    }
    return begin;
  }

  int ranks_;
  const BarePlan::Bytes& bytes_;
  int pieces_;
  std::uint64_t most_;
};

}  // namespace

BarePlan BarePlan::of(int ranks, int rank, const Bytes& bytes, int pieces, std::uint64_t most) {
  const Parcels parcels(ranks, bytes, pieces, most);
  BarePlan plan;
  plan.in = parcels.to(rank);
  for (const Piece& piece : plan.in) plan.in_bytes += piece.bytes;
  std::vector<std::vector<Piece>> to_each;
  std::size_t rounds = 0;
  for (int step = 1; step < ranks; ++step) {
    const int peer = parcels.after(rank, step);
    std::vector<Piece>& own = to_each.emplace_back();
    for (const Piece& piece : parcels.to(peer)) {
      if (piece.peer != rank) continue;
      own.push_back({peer, piece.opposite, piece.offset, piece.bytes, piece.number});
      plan.out_bytes += piece.bytes;
    }
    rounds = std::max(rounds, own.size());
  }
  for (std::size_t i = 0; i < rounds; ++i) {
    for (const std::vector<Piece>& own : to_each) {
      if (i < own.size()) plan.out.push_back(own[i]);
    }
  }
  return plan;
}

}  // namespace sluice::bench
