// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_sums.hpp"

#include <algorithm>

#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {

using protocol::CellKind;
using protocol::HostAccess;

void LaneSums::publish(std::uint64_t epoch) {
  const int bank = view_.bank(epoch);
  for (int home = 0; home < site_.nodes.ranks(); ++home) {
    if (site_.nodes.together(home, site_.rank)) continue;
    const std::size_t lane = view_.lanes(site_.rank).out(home);
    Part own;
    own.epoch = epoch;
    if (view_.has_cell(lane, CellKind::combine, epoch)) {  // Else it is given up.
      own.by_node = view_.by_node(lane, bank) ? 1 : 0;
      own.tokens = view_.answered_tokens(lane, bank);
      own.codec = static_cast<std::int32_t>(view_.codec(lane, bank));
    }
    part(site_.rank, home, epoch) = own;
  }
  published_ = epoch;
  say_published(epoch);
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
  while (begun_ < published_ && begin(begun_ + 1)) any = true;
  for (; !summing_.empty() && summing_.front().items <= ferry_.carried(); summing_.pop_front()) {
    out_.sums(summing_.front().home, summing_.front().epoch, summing_.front().tokens);
    any = true;
  }
  return any;
}

// Those who come no more are not waited for.
bool LaneSums::everyone_published(std::uint64_t epoch) const {
  const auto neighbours = site_.neighbours();
  return std::all_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
    // Looked at before the last look for its answers. (Who has left may still be about to say so.) Pairs with the release
    // store of relays that end.
    const bool gone = site_.group->is_dead(neighbour) || given_up(site_, view_, neighbour) ||
                      HostAccess::load_acquire(*site_.at<std::uint64_t>(
                          neighbour, site_.layout(neighbour).closed())) == relay::kRelayEnded;
    // Pairs with say_published().
    return HostAccess::load_acquire(*site_.at<std::uint64_t>(
               neighbour, site_.layout(neighbour).published(CellKind::combine))) >= epoch ||
           gone;
  });
}

bool LaneSums::begin(std::uint64_t epoch) {
  const std::vector<int>& served = site_.own().served();
  // Whether sums follow its cells: home expects them by that.
  const bool any = std::any_of(served.begin(), served.end(), [&](int home) {
    return part(site_.rank, home, epoch).by_node != 0;
  });
  if (any && !everyone_published(epoch)) return false;
  for (const int home : served) {
    if (part(site_.rank, home, epoch).by_node != 0) add_up(home, epoch);
  }
  begun_ = epoch;
  return true;
}

void LaneSums::add_up(int home, std::uint64_t epoch) {
  int tokens = 0;
  std::int32_t codec = 0;
  std::uint32_t places = 0;
  for (const int rank : site_.neighbours()) {
    // Of who has not published, or is not to be added up, it is of another epoch, or empty.
    const Part of = part(rank, home, epoch);
    const bool published = HostAccess::load_acquire(*site_.at<std::uint64_t>(
                               rank, site_.layout(rank).published(CellKind::combine))) >= epoch;
    if (!published || of.epoch != epoch || of.by_node == 0 || of.tokens == 0) continue;
    if (places == 0) codec = of.codec;
    if (of.codec != codec) continue;  // Another call.
    places |= 1U << site_.nodes.place_of(rank);
    // Bounded: who has given this rank up may write something else there by now.
    tokens = std::max(tokens, std::min(of.tokens, view_.tokens()));
  }
  for (int token = 0; token < tokens; ++token) {
    ferry_.carry_sum({home, view_.bank(epoch), token}, window::tag_of(epoch),
                     LaneView::dtype_of(codec), static_cast<std::uint16_t>(places));
  }
  summing_.push_back({home, epoch, tokens, ferry_.added()});
}

}  // namespace sluice::engine::cuda
