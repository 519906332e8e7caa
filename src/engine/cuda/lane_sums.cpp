// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_sums.hpp"

#include <algorithm>

#include "base/deadline.hpp"
#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {
namespace {

// In a call of few tokens its ranks are nearer to each other than that; in one of many it does not matter.
constexpr std::int64_t kSoonNs = 100'000;

}  // namespace

using protocol::CellKind;
using protocol::HostAccess;

std::uint32_t LaneSums::publish(std::uint64_t epoch) {
  const int bank = view_.bank(epoch);
  const std::uint32_t suspects = view_.suspects();
  for (int home = 0; home < site_.nodes.ranks(); ++home) {
    if (site_.nodes.together(home, site_.rank)) continue;
    const std::size_t lane = view_.lanes(site_.rank).out(home);
    Part own;
    own.epoch = epoch;
    // Else it is given up, and some of it may not have been stored.
    if (view_.has_cell(lane, CellKind::combine, epoch) && ((suspects >> home) & 1U) == 0) {
      own.by_node = view_.by_node(lane, bank) ? 1 : 0;
      own.tokens = view_.answered_tokens(lane, bank);
      own.codec = static_cast<std::int32_t>(view_.codec(lane, bank));
    }
    part(site_.rank, home, epoch) = own;
  }
  published_ = epoch;
  say_published(epoch);
  std::uint32_t later = 0;
  for (const int home : site_.own().served()) {
    if (part(site_.rank, home, epoch).by_node != 0) later |= 1U << home;
  }
  awaited_.push_back({epoch, later == 0 ? 0 : base::now_ns(), later == 0});
  return later;
}

void LaneSums::close() {
  say_published(UINT64_MAX);
}

void LaneSums::say_published(std::uint64_t epoch) const {
  auto& word = *site_.at<std::uint64_t>(site_.rank, site_.own().published(CellKind::combine));
  if (HostAccess::load_acquire(word) >= epoch) return;
  HostAccess::store_release(word, epoch);  // Pairs with everyone_published() of the neighbours.
  for (const int neighbour : site_.neighbours()) {
    if (neighbour != site_.rank) site_.doorbell(neighbour).ring();
  }
}

bool LaneSums::step() {
  bool any = false;
  while (!awaited_.empty() && begin(awaited_.front())) {
    awaited_.pop_front();
    any = true;
  }
  any |= send_cells();
  for (; !summing_.empty() && summing_.front().items <= ferry_.carried(); summing_.pop_front()) {
    const Summing& done = summing_.front();
    if (!done.cell_sent) out_.answer(done.home, done.epoch);
    out_.sums(done.home, done.epoch, done.tokens);
    any = true;
  }
  return any;
}

// Cells that sums are not soon to follow: ranks that made another call wait for nothing else, and what they wait for may be what
// the sums here wait for.
bool LaneSums::send_cells() {
  bool any = false;
  for (Awaited& each : awaited_) {
    if (each.cells_sent || base::now_ns() - each.since_ns < kSoonNs) continue;
    each.cells_sent = true;
    for (const int home : site_.own().served()) {
      if (part(site_.rank, home, each.epoch).by_node != 0) out_.answer(home, each.epoch);
    }
    any = true;
  }
  return any;
}

// Those who come no more are not waited for.
bool LaneSums::everyone_published(std::uint64_t epoch) const {
  const auto neighbours = site_.neighbours();
  return std::all_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
    // Looked at before the last look for its answers. (Who has left may still be about to say so.)
    const bool gone = site_.peers->is_over(neighbour) || given_up(site_, view_, neighbour) ||
                      view_.suspects(neighbour) || site_.relay_ended(neighbour);
    // Pairs with say_published().
    return HostAccess::load_acquire(*site_.at<std::uint64_t>(
               neighbour, site_.layout(neighbour).published(CellKind::combine))) >= epoch ||
           gone;
  });
}

bool LaneSums::begin(const Awaited& next) {
  const std::uint64_t epoch = next.epoch;
  const std::vector<int>& served = site_.own().served();
  // Whether sums follow its cells: home expects them by that.
  const bool any = std::any_of(served.begin(), served.end(), [&](int home) {
    return part(site_.rank, home, epoch).by_node != 0;
  });
  if (any && !everyone_published(epoch)) return false;
  for (const int home : served) {
    if (part(site_.rank, home, epoch).by_node != 0) add_up(home, epoch, next.cells_sent);
  }
  return true;
}

void LaneSums::add_up(int home, std::uint64_t epoch, bool cell_sent) {
  int tokens = 0;
  // Rows travel as this rank's cell says: who answers in another codec has made another call.
  const std::int32_t codec = part(site_.rank, home, epoch).codec;
  std::uint32_t places = 0;
  for (const int rank : site_.neighbours()) {
    // Pairs with say_published().
    const bool published = HostAccess::load_acquire(*site_.at<std::uint64_t>(
                               rank, site_.layout(rank).published(CellKind::combine))) >= epoch;
    if (!published) continue;
    const Part of = part(rank, home, epoch);
    if (of.epoch != epoch || of.by_node == 0 || of.tokens == 0 || of.codec != codec) continue;
    places |= 1U << site_.nodes.place_of(rank);
    // Bounded: who has given this rank up may write something else there by now.
    tokens = std::max(tokens, std::min(of.tokens, view_.tokens()));
  }
  for (int token = 0; token < tokens; ++token) {
    ferry_.carry_sum({home, view_.bank(epoch), token}, window::tag_of(epoch),
                     LaneView::dtype_of(codec), static_cast<std::uint16_t>(places));
  }
  summing_.push_back({home, epoch, tokens, cell_sent, ferry_.added()});
}

}  // namespace sluice::engine::cuda
