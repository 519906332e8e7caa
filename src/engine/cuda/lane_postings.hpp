// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/lane_view.hpp"
#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::engine::cuda {

/// The way out: what this rank's kernels have published is posted, an operation at a time (LaneTraffic).
class LanePostings {
 public:
  /// All outlive it.
  LanePostings(const relay::Site& site, relay::Postings& postings, const LaneView& view)
      : site_(site), postings_(postings), view_(view), ranks_(at(view.tokens())) {}

  void dispatch(std::uint64_t epoch);
  void weights(std::uint64_t epoch);
  /// To all homes but those in `later`. With `reduce = node` the cells alone.
  void answers(std::uint64_t epoch, std::uint32_t later);
  /// To one.
  void answer(int home, std::uint64_t epoch);
  /// What this rank's node answers the home, of the first `tokens` of its tokens.
  void sums(int home, std::uint64_t epoch, int tokens);

 private:
  std::size_t post_head(int node, std::uint64_t epoch);
  void post_rows(int peer, std::uint64_t epoch, std::size_t row_bytes);
  bool add_answers(std::size_t from, std::size_t to, std::uint64_t epoch);
  void post_answer_rows(int home, std::uint64_t epoch);

  const relay::Site& site_;
  relay::Postings& postings_;
  const LaneView& view_;
  std::vector<std::uint16_t> ranks_;  // [T] of the node that is posted to: who gets the token's row
};

}  // namespace sluice::engine::cuda
