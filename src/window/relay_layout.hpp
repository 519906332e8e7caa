// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/cell.hpp"
#include "routing/node_map.hpp"
#include "transport/message.hpp"
#include "window/window_layout.hpp"

/// The bytes of a rank's window that other nodes take part in, behind those of WindowLayout; and the
/// slots of the messages that it gets. One source for engines and relay.
///
///   relay    := words out in
///   words    := published[kinds] flushed[2] closed (with alive) told[2] accusation[R] bytes_put[R]
///                lost[R] goodbye[R] first_put last_arrival
///   out      := head[nodes'][2][B]                                  (per other node)
///               answer[R'][B] answer_row[R'][Da][C]                 (per home on another node)
///               sum[homes][B] sum_row[homes][Da][S]                 (per home that this rank serves)
///   in       := head[sources][2][B] landed[sources][Dd] dispatch_row[sources][Dd][S]
///               answer_head[R'][B] answer_landing[R'][Da][C]
///   head     := RelayHead records:i32[ranks of the node] groups:u8[G] dispatch_header[S]
///   answer   := AnswerHead cell tokens:i32[S] mask:u32[C] row_weights:f32[S][K]
///   sum      := AnswerHead cell[ranks of this node] mask:u32[S] row_weights:f32[S][K]
///
/// A rank serves the ranks whose rail peer it is. S, C, K, B are those of WindowLayout, Dd the stages
/// of dispatched rows, Da those of combined ones (or B). Rows arrive in lanes where these have any, and
/// then there is no answer_landing. Masks and row weights always arrive in lanes.
namespace sluice::window {

/// First bytes of what a rank sends to another node in a dispatch, or the weights of a combine.
struct RelayHead {
  std::uint64_t epoch = 0;
  protocol::CellContent
      content;               ///< Of all cells, but for `records`; rows: where the source has them.
  std::int32_t headers = 0;  ///< One for each (token, node), with global expert ids.
  std::int32_t headers_sent = 0;  ///< 0: readers have them already (a cached dispatch).
  std::uint32_t row_bytes = 0;    ///< 0: no rows follow.
  std::uint32_t unused = 0;
};

/// First bytes of what comes home in a combine, before the cells that will be published there.
struct AnswerHead {
  std::uint64_t epoch = 0;
  std::int32_t slots = 0;  ///< Rows are numbered up to it: records, or tokens in sums of nodes.
  std::int32_t contents = 0;
  std::uint32_t row_bytes = 0;
  std::uint32_t by_node = 0;     ///< To be added to what others of its node answer.
  std::uint32_t cells_only = 0;  ///< No rows come, nor masks.
};
inline constexpr std::size_t kAnswerHeadBytes = kLineBytes;
static_assert(sizeof(AnswerHead) <= kAnswerHeadBytes);

/// What is said by a message without bytes.
enum class Sign : std::uint8_t {
  told_dispatch,  ///< One more dispatch was read.
  told_combine,
  beat,   ///< The rank waits, or has ended a half.
  alive,  ///< Its progress thread runs.
  echo,  ///< A beat, or sign that it is alive, has come from the receiver: that with the same number.
  heard,  ///< An accusation has been passed on.
  bye,    ///< It has closed its communicator.
  // The others are said of one rank of a node.
  accused,  ///< Of the receiver's node: the sender has given it up.
  died,     ///< Of the sender's node: nothing more comes of it.
  ended,    ///< Of the sender's node: its process has ended, so it takes nothing more either.
  absent,   ///< Of the sender's node: it is in none of the sums that the sender will form.
};

/// What comes though nobody does anything.
constexpr bool is_sign_of_life(Sign sign) noexcept {
  return sign == Sign::alive || sign == Sign::echo;
}

/// A message's slot at its receiver, taken apart.
struct RelaySlot {
  enum class What : std::uint8_t { sign, head, rows, answer, sums, answer_rows };
  int source = -1;
  What what = What::sign;
  Sign sign = Sign::alive;
  int place = 0;  ///< sign: of the rank on its node
  int index = 0;  ///< head: kind x B + bank; answer, sums: bank
  int stage = 0;
  int group = 0;
};

class RelayLayout {
 public:
  using Slot = RelaySlot;

  /// The area of `rank`. `group_rows`: rows of one message.
  RelayLayout(const WindowLayout& window, const routing::NodeMap& nodes, int rank, int group_rows);

  std::size_t bytes() const noexcept { return bytes_; }
  int group_rows() const noexcept { return group_rows_; }
  int groups(int rows) const noexcept { return (rows + group_rows_ - 1) / group_rows_; }
  /// What landed() says when all rows of a source are there.
  std::uint32_t all_rows() const noexcept {
    return static_cast<std::uint32_t>(groups(tokens_)) * static_cast<std::uint32_t>(group_rows_);
  }
  int dispatch_depth() const noexcept { return dispatch_depth_; }
  int answer_depth() const noexcept { return answer_depth_; }
  int dispatch_stage(std::uint64_t epoch) const noexcept {
    return static_cast<int>(epoch % at(dispatch_depth_));
  }
  int answer_stage(std::uint64_t epoch) const noexcept {
    return static_cast<int>(epoch % at(answer_depth_));
  }
  /// Homes and sources that this rank serves, ascending.
  const std::vector<int>& served() const noexcept { return served_; }

  // Offsets from the window's base.
  std::size_t published(protocol::CellKind kind) const noexcept {
    return words_ + at(static_cast<int>(kind)) * kLineBytes;
  }
  std::size_t flushed(protocol::Kind kind) const noexcept {
    return words_ + at(protocol::kCellKinds + static_cast<int>(kind)) * kLineBytes;
  }
  std::size_t closed() const noexcept {
    return words_ + at(protocol::kCellKinds + protocol::kKinds) * kLineBytes;
  }
  /// Beside it: signs of life of the progress thread.
  std::size_t alive() const noexcept { return closed() + sizeof(std::uint64_t); }
  std::size_t told(protocol::Kind kind) const noexcept {
    return words_ + at(protocol::kCellKinds + protocol::kKinds + 1) * kLineBytes +
           at(static_cast<int>(kind)) * sizeof(std::uint64_t);
  }
  /// Where the progress thread sleeps: a memory::Doorbell.
  std::size_t doorbell() const noexcept { return told(protocol::Kind::dispatch) + kLineBytes; }
  std::size_t accusation(int peer) const noexcept {
    return doorbell() + kLineBytes + at(peer) * sizeof(std::uint64_t);
  }
  /// Bytes that were put to the peer, for statistics.
  std::size_t bytes_put(int peer) const noexcept {
    return accusation(peer) + at(ranks_) * sizeof(std::uint64_t);
  }
  /// Whether this rank's endpoint has lost the peer.
  std::size_t lost(int peer) const noexcept {
    return bytes_put(peer) + at(ranks_) * sizeof(std::uint64_t);
  }
  /// Whether the peer, of another node, has closed its communicator.
  std::size_t goodbye(int peer) const noexcept {
    return lost(peer) + at(ranks_) * sizeof(std::uint64_t);
  }
  /// When the newest operation's first chunk was put, for statistics; beside it, when the newest chunk has
  /// arrived.
  std::size_t first_put() const noexcept { return goodbye(ranks_); }
  std::size_t last_arrival() const noexcept { return first_put() + sizeof(std::uint64_t); }

  /// `weights`: of a combine, else of a dispatch.
  std::size_t out_head(int node, bool weights, int bank) const noexcept {
    return out_heads_ + ((at(remote_node(node)) * 2 + at(weights)) * at(banks_) + at(bank)) * head_;
  }
  std::size_t in_head(int source, bool weights, int bank) const noexcept {
    return in_heads_ + ((at(service_of(source)) * 2 + at(weights)) * at(banks_) + at(bank)) * head_;
  }
  // Within a head.
  std::size_t head_records() const noexcept { return sizeof(RelayHead); }
  std::size_t head_groups() const noexcept { return head_groups_; }
  std::size_t head_headers() const noexcept { return head_headers_; }
  std::size_t header_bytes() const noexcept { return header_; }

  std::size_t landed(int source, int stage) const noexcept {
    return landed_ + (at(service_of(source)) * at(dispatch_depth_) + at(stage)) * kLineBytes;
  }
  std::size_t dispatch_row(int source, int stage, int token) const noexcept {
    return dispatch_rows_ +
           ((at(service_of(source)) * at(dispatch_depth_) + at(stage)) * at(tokens_) + at(token)) *
               window_.dispatch_row_stride();
  }

  std::size_t answer(int home, int bank) const noexcept {
    return answers_ + (at(remote_rank(home)) * at(banks_) + at(bank)) * answer_;
  }
  std::size_t answer_row(int home, int stage, int slot) const noexcept {
    return answer_rows_ +
           ((at(remote_rank(home)) * at(answer_depth_) + at(stage)) * at(window_.combine_slots()) +
            at(slot)) *
               window_.combine_row_stride();
  }
  // Within an answer.
  std::size_t answer_content() const noexcept { return kAnswerHeadBytes; }
  std::size_t answer_tokens() const noexcept { return answer_tokens_; }
  std::size_t answer_masks() const noexcept { return answer_masks_; }
  std::size_t answer_weights() const noexcept { return answer_weights_; }

  std::size_t sum(int home, int bank) const noexcept {
    return sums_ + (at(service_of(home)) * at(banks_) + at(bank)) * sum_;
  }
  std::size_t sum_row(int home, int stage, int token) const noexcept {
    return sum_rows_ +
           ((at(service_of(home)) * at(answer_depth_) + at(stage)) * at(tokens_) + at(token)) *
               window_.combine_row_stride();
  }
  // Within a sum; contents lie as in an answer.
  std::size_t sum_masks() const noexcept { return sum_masks_; }
  std::size_t sum_weights() const noexcept { return sum_weights_; }

  /// `sums`: of its node, else of the source alone.
  std::size_t answer_head(int source, bool sums, int bank) const noexcept {
    return answer_heads_ +
           ((at(remote_rank(source)) * 2 + at(sums)) * at(banks_) + at(bank)) * answer_head_;
  }
  /// Where row `slot` of what `source` answers arrives.
  std::size_t answer_landing(int source, std::uint64_t epoch, int slot) const noexcept {
    if (window_.shape().combine_stages == 0) {
      return window_.combine_row(source, static_cast<int>(epoch % at(banks_)), slot);
    }
    return answer_landing_ +
           ((at(remote_rank(source)) * at(answer_depth_) + at(answer_stage(epoch))) *
                at(window_.combine_slots()) +
            at(slot)) *
               window_.combine_row_stride();
  }

  // Slots of messages to this rank. Those of one source lie together.
  int first_slot(int source) const noexcept { return block(source); }
  int slots_per_source() const noexcept { return block_; }
  int sign_slot(int source, Sign sign, int place = 0) const noexcept {
    const int kinds = static_cast<int>(sign) - static_cast<int>(Sign::accused);
    if (kinds < 0) return block(source) + static_cast<int>(sign);
    return block(source) + static_cast<int>(Sign::accused) + kinds * places_ + place;
  }
  int head_slot(int source, bool weights, int bank) const noexcept {
    return block(source) + heads_at_ + (weights ? banks_ : 0) + bank;
  }
  int rows_slot(int source, int stage, int group) const noexcept {
    return block(source) + rows_at_ + stage * groups(tokens_) + group;
  }
  int answer_slot(int source, bool sums, int bank) const noexcept {
    return block(source) + answers_at_ + (sums ? banks_ : 0) + bank;
  }
  int answer_rows_slot(int source, int stage, int group) const noexcept {
    return block(source) + answer_rows_at_ + stage * groups(window_.combine_slots()) + group;
  }
  Slot slot(int number) const noexcept;
  int slots() const noexcept { return static_cast<int>(remotes_.size()) * block_; }
  /// The longest message but for rows.
  std::size_t message_bytes_max() const noexcept { return std::max({head_, answer_, sum_}); }
  bool valid() const noexcept {
    return remotes_.size() * at(block_) <= std::size_t{transport::Signal::kOwnSlots};
  }

 private:
  static constexpr std::size_t at(int value) noexcept { return static_cast<std::size_t>(value); }
  int service_of(int source) const noexcept { return service_[at(source)]; }
  int remote_rank(int peer) const noexcept { return remote_rank_[at(peer)]; }
  int remote_node(int node) const noexcept { return node < own_node_ ? node : node - 1; }
  int block(int source) const noexcept { return remote_rank(source) * block_; }

  WindowLayout window_;
  int ranks_ = 0;
  int banks_ = 0;
  int tokens_ = 0;
  int group_rows_ = 0;
  int dispatch_depth_ = 0;
  int answer_depth_ = 0;
  int own_node_ = 0;
  int places_ = 0;  // ranks of the largest node
  std::vector<int> served_;
  std::vector<int> service_;      // [R] place among served_, or -1
  std::vector<int> remotes_;      // ranks of other nodes
  std::vector<int> remote_rank_;  // [R] place among them, or -1

  std::size_t words_ = 0;
  std::size_t out_heads_ = 0, in_heads_ = 0, head_ = 0, head_groups_ = 0, head_headers_ = 0,
              header_ = 0;
  std::size_t landed_ = 0, dispatch_rows_ = 0;
  std::size_t answers_ = 0, answer_ = 0, answer_tokens_ = 0, answer_masks_ = 0, answer_weights_ = 0,
              answer_rows_ = 0;
  std::size_t sums_ = 0, sum_ = 0, sum_masks_ = 0, sum_weights_ = 0, sum_rows_ = 0;
  std::size_t answer_heads_ = 0, answer_head_ = 0, answer_landing_ = 0;
  std::size_t bytes_ = 0;
  // Within the slots of one source.
  int heads_at_ = 0, rows_at_ = 0, answers_at_ = 0, answer_rows_at_ = 0, block_ = 0;
};

}  // namespace sluice::window
