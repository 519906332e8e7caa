// SPDX-License-Identifier: MIT
#include "window/relay_layout.hpp"

namespace sluice::window {
namespace {

// accused, died, ended, absent
constexpr int kSignsOfOneRank =
    static_cast<int>(Sign::absent) - static_cast<int>(Sign::accused) + 1;

}  // namespace

RelayLayout::RelayLayout(const WindowLayout& window, const routing::NodeMap& nodes, int rank,
                         int group_rows)
    : window_(window),
      ranks_(nodes.ranks()),
      banks_(window.shape().banks),
      tokens_(window.shape().tokens),
      group_rows_(group_rows),
      dispatch_depth_(window.shape().dispatch_stages),
      answer_depth_(window.shape().combine_stages > 0 ? window.shape().combine_stages : banks_),
      own_node_(nodes.node_of(rank)),
      served_(nodes.served_by(rank)),
      service_(at(nodes.ranks()), -1),
      remote_rank_(at(nodes.ranks()), -1) {
  for (std::size_t i = 0; i < served_.size(); ++i) service_[at(served_[i])] = static_cast<int>(i);
  std::size_t largest_node = 0;
  for (int peer = 0; peer < nodes.ranks(); ++peer) {
    largest_node = std::max(largest_node, nodes.ranks_of(nodes.node_of(peer)).size());
    if (nodes.together(peer, rank)) continue;
    remote_rank_[at(peer)] = static_cast<int>(remotes_.size());
    remotes_.push_back(peer);
  }
  places_ = static_cast<int>(largest_node);
  const std::size_t top_k = at(window.shape().top_k);
  const std::size_t served = served_.size();
  const std::size_t remotes = remotes_.size();
  const std::size_t other_nodes = at(nodes.nodes() - 1);

  // Within a head, an answer, a sum.
  header_ = DispatchHeaderLayout::bytes(window.shape().top_k);
  head_groups_ = head_records() + largest_node * sizeof(std::int32_t);
  head_headers_ = round_up(head_groups_ + at(groups(tokens_)), kLineBytes);
  head_ = round_up(head_headers_ + at(tokens_) * header_, kLineBytes);
  const std::size_t masks = at(window.combine_slots()) * sizeof(std::uint32_t);
  const std::size_t weights = at(tokens_) * top_k * sizeof(float);
  answer_tokens_ = answer_content() + sizeof(protocol::Cell);
  answer_masks_ = round_up(answer_tokens_ + at(tokens_) * sizeof(std::int32_t), kLineBytes);
  answer_weights_ = round_up(answer_masks_ + masks, kLineBytes);
  answer_ = round_up(answer_weights_ + weights, kLineBytes);
  answer_head_ = kAnswerHeadBytes + largest_node * sizeof(protocol::Cell);
  sum_masks_ = answer_head_;
  sum_weights_ = round_up(sum_masks_ + at(tokens_) * sizeof(std::uint32_t), kLineBytes);
  sum_ = round_up(sum_weights_ + weights, kLineBytes);

  std::size_t end = window.bytes();
  const auto take = [&end](std::size_t bytes) {
    const std::size_t begin = round_up(end, kRowAlignment);
    end = begin + bytes;
    return begin;
  };
  const std::size_t combine_rows = at(window.combine_slots()) * window.combine_row_stride();
  words_ = take((protocol::kCellKinds + protocol::kKinds + 3) * kLineBytes +
                (4 * at(nodes.ranks()) + 2) * sizeof(std::uint64_t));
  out_heads_ = take(other_nodes * 2 * at(banks_) * head_);
  answers_ = take(remotes * at(banks_) * answer_);
  answer_rows_ = take(remotes * at(answer_depth_) * combine_rows);
  sums_ = take(served * at(banks_) * sum_);
  sum_rows_ = take(served * at(answer_depth_) * at(tokens_) * window.combine_row_stride());
  in_heads_ = take(served * 2 * at(banks_) * head_);
  landed_ = take(served * at(dispatch_depth_) * kLineBytes);
  dispatch_rows_ = take(served * at(dispatch_depth_) * at(tokens_) * window.dispatch_row_stride());
  answer_heads_ = take(remotes * 2 * at(banks_) * answer_head_);
  answer_landing_ =
      take(window.shape().combine_stages == 0 ? 0 : remotes * at(answer_depth_) * combine_rows);
  bytes_ = round_up(end, kPageBytes);

  heads_at_ = static_cast<int>(Sign::accused) + kSignsOfOneRank * places_;
  rows_at_ = heads_at_ + 2 * banks_;
  answers_at_ = rows_at_ + dispatch_depth_ * groups(tokens_);
  answer_rows_at_ = answers_at_ + 2 * banks_;
  block_ = answer_rows_at_ + answer_depth_ * groups(window.combine_slots());
}

RelayLayout::Slot RelayLayout::slot(int number) const noexcept {
  Slot slot;
  slot.source = remotes_[at(number / block_)];
  const int place = number % block_;
  if (place < heads_at_) {
    slot.what = Slot::What::sign;
    const int first = static_cast<int>(Sign::accused);
    slot.sign = static_cast<Sign>(place < first ? place : first + (place - first) / places_);
    slot.place = place < first ? 0 : (place - first) % places_;
  } else if (place < rows_at_) {
    slot.what = Slot::What::head;
    slot.index = place - heads_at_;
  } else if (place < answers_at_) {
    slot.what = Slot::What::rows;
    slot.stage = (place - rows_at_) / groups(tokens_);
    slot.group = (place - rows_at_) % groups(tokens_);
  } else if (place < answer_rows_at_) {
    const bool sums = place >= answers_at_ + banks_;
    slot.what = sums ? Slot::What::sums : Slot::What::answer;
    slot.index = (place - answers_at_) % banks_;
  } else {
    slot.what = Slot::What::answer_rows;
    slot.stage = (place - answer_rows_at_) / groups(window_.combine_slots());
    slot.group = (place - answer_rows_at_) % groups(window_.combine_slots());
  }
  return slot;
}

}  // namespace sluice::window
