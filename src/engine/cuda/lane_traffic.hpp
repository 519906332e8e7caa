// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/cuda/ferry_launcher.hpp"
#include "engine/cuda/lane_postings.hpp"
#include "engine/cuda/lane_receipts.hpp"
#include "engine/cuda/lane_sums.hpp"
#include "engine/cuda/lane_view.hpp"
#include "relay/traffic.hpp"
#include "transport/message.hpp"

namespace sluice::engine::cuda {

/// What ranks of the CUDA engine send to other nodes: bytes of lanes, as the kernels have written them (FarLanes).
///
/// **Dispatch.** To the rail peer of a node: the cell, counts and routes for each rank there (a message), and the rows
/// in groups, one for each (token, node). The rail peer's ferry carries each to the lanes that it is for, as it comes.
/// **Combine.** Straight to the rank that it is for: weights that were given, and answers with their cell (a
/// message each), and rows in groups; with `reduce = node` only the cell, and sums of this node from who serves that rank
/// (LaneSums).
/// LanePostings is the way out, LaneReceipts what is told in both directions; here is the way in.
///
/// **Why nothing is overwritten before it is read.** A lane here, on its way, and there belongs to one
/// writer and one bank. Kernels wait until the reader has told that it has read the last use of a bank. What it tells comes
/// into their lane only when this rank's messages of that operation to it, and to the rail peer by which it gets them, have
/// been sent, so what they lie in may be overwritten; and it is sent only when all that came for that operation, also for
/// others of the node, has been carried away (`complete`), so where it has landed may be, too. Who is given up is written to no
/// more, and with a rail peer all of its node is: so no lane is used again while chunks from it may be under way.
/// In throughput mode rows lie in one place for all nodes, and land in one place for all ranks of a node. So kernels that have
/// given somebody up wait for `flushed` besides (tell_flushed), and accusations are passed on before anything that was
/// published after them (note_accusations, accused, say_heard).
class LaneTraffic final : public relay::Traffic {
 public:
  LaneTraffic(const relay::Site& site, relay::Postings& postings, std::shared_ptr<FerryPort> port);
  ~LaneTraffic() override;

  bool step() override;
  void chunk(std::uint32_t immediate) override;
  std::uint64_t posted(protocol::Kind kind) const noexcept override {
    if (kind == protocol::Kind::combine) return sums_.posted();
    return taken_[static_cast<std::size_t>(protocol::CellKind::dispatch)];
  }
  bool accused(int source, int reader) override;
  bool idle() const noexcept override { return ferry_.idle() && unheard_.empty() && sums_.idle(); }

 private:
  /// What has come of one operation of a source, in one bank.
  struct Arrival {
    std::uint64_t epoch = 0;  // That is awaited.
    bool head = false;
    bool sums = false;
    bool weights = false;
    std::vector<std::uint8_t> groups;  // Rows that have come.
    int groups_missing = 0;
  };
  /// An accusation that is on its way to who is accused.
  struct Unheard {
    int source;
    std::uint64_t items;  // Of the ferry, counted from its first.
  };

  bool note_accusations();
  bool say_heard();
  bool is_under_way(protocol::Kind kind) const noexcept;
  std::uint64_t published(protocol::CellKind kind) const noexcept;
  template <typename Post>
  bool take(protocol::CellKind kind, std::uint64_t published, Post post);

  void take_dispatch_head(int source, int bank);
  void take_dispatch_rows(int source, int bank, int group);
  void carry_rows(int source, int bank, int group);
  void take_weights(int source, int bank);
  void take_answer(int source, int bank);
  void take_sums(int source, int bank);
  void take_answers(Arrival& arrival, int source, int bank);
  bool brings_sums(int source, int bank) const noexcept;
  void take_answer_rows(int source, int bank, int group);
  void carry_answer_rows(int source, const Arrival& arrival, int bank, int group);
  void carry_answer(int source, int bank, int token, bool rows);
  void carry_answers_without_rows(int source, const Arrival& arrival, int bank);
  bool has_come(std::size_t in, const Arrival& arrival, int token) const noexcept;
  void end(Arrival& arrival, int source, protocol::Kind kind);
  void end_answer(Arrival& arrival, int source, int bank);
  std::uint16_t row_ranks(int source, int bank, int token) const noexcept;
  std::size_t heads(int source, int rank) const noexcept;

  const relay::Site& site_;
  relay::Postings& postings_;
  std::shared_ptr<FerryPort> port_;
  const LaneView view_;
  LanePostings out_;
  Ferry ferry_;
  LaneSums sums_;
  LaneReceipts receipts_;
  transport::Arrivals arrivals_;
  std::array<std::uint64_t, protocol::kCellKinds> taken_{};
  std::vector<Arrival> dispatches_;  // [R][B]
  std::vector<Arrival> combines_;    // [R][B]
  std::deque<Unheard> unheard_;
};

}  // namespace sluice::engine::cuda
