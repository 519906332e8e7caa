// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/cuda/ferry_launcher.hpp"
#include "relay/traffic.hpp"
#include "transport/message.hpp"

namespace sluice::engine::cuda {

/// What ranks of the CUDA engine in latency mode send to other nodes: bytes of lanes, as the kernels
/// have written them (HostLanes).
///
/// **Dispatch.** To the rail peer of a node: the cell, counts and routes for each rank there (a message), and the rows
/// in groups, one for each (token, node). The rail peer's ferry carries each to the lanes that it is for, as it comes.
/// **Combine.** Straight to the rank that it is for: weights that were given, and answers with their cell (a
/// message each), and rows in groups.
///
/// **Why nothing is overwritten before it is read.** A lane here, on its way, and there belongs to one
/// writer and one bank. Kernels wait until the reader has told that it has read the last use of a bank. What it tells comes
/// into their lane only when this rank's messages of that operation have been sent (`flushed`), so what they lie in may
/// be overwritten; and it is sent only when all that came for that operation, also for others of the node, has been
/// carried away (`complete`), so where it has landed may be, too. Who is given up is written to no more, and with a rail
/// peer all of its node is: so no lane is used again while chunks from it may be under way.
class LaneTraffic final : public relay::Traffic {
 public:
  LaneTraffic(const relay::Site& site, relay::Postings& postings, std::shared_ptr<FerryPort> port);
  ~LaneTraffic() override;

  bool step() override;
  void chunk(std::uint32_t immediate) override;
  std::uint64_t posted(protocol::Kind kind) const noexcept override {
    return taken_[static_cast<std::size_t>(kind == protocol::Kind::dispatch
                                               ? protocol::CellKind::dispatch
                                               : protocol::CellKind::combine)];
  }
  bool idle() const noexcept override { return ferry_.idle(); }

 private:
  using Packet = std::array<std::uint32_t, 4>;

  /// What has come of one operation of a source, in one bank.
  struct Arrival {
    std::uint64_t epoch = 0;  // That is awaited.
    bool head = false;
    bool weights = false;
    std::vector<std::uint8_t> groups;  // Rows that have come.
    int groups_missing = 0;
  };
  /// An operation whose last items are on their way.
  struct Ending {
    int source;
    protocol::Kind kind;
    std::uint64_t epoch;
    std::uint64_t items;  // Of the ferry, counted from its first.
  };

  static std::size_t at(int value) noexcept { return static_cast<std::size_t>(value); }
  int bank(std::uint64_t epoch) const noexcept {
    return static_cast<int>((epoch - 1) % at(port_->layout.shape().banks));
  }
  std::uint64_t published(protocol::CellKind kind) const noexcept;
  template <typename Post>
  bool take(protocol::CellKind kind, std::uint64_t published, Post post);
  const std::byte* host(std::size_t offset) const noexcept { return port_->host + offset; }
  Packet packet(std::size_t offset) const noexcept;
  /// Bits of the tokens whose records a cell announces.
  bool comes(std::size_t lane, int bank, int token) const noexcept;

  void post_dispatch(std::uint64_t epoch);
  std::size_t post_dispatch_head(int node, std::uint64_t epoch, std::vector<std::uint16_t>& ranks);
  void post_rows(int peer, std::uint64_t epoch, const std::vector<std::uint16_t>& ranks,
                 std::size_t row_bytes);
  void post_weights(std::uint64_t epoch);
  void post_answers(std::uint64_t epoch);
  void post_answer(int home, std::uint64_t epoch);
  /// Tokens, first and behind the last, whose packet at `offset`, `stride` apart, has the tag of the epoch.
  struct Range {
    int begin = 0;
    int end = 0;
    bool empty() const noexcept { return begin >= end; }
  };
  Range tagged(std::size_t offset, std::size_t stride, std::uint64_t epoch) const noexcept;
  bool weights_before(std::size_t lane, int bank) const noexcept;
  std::size_t record_bytes(std::size_t lane, protocol::CellKind kind, int bank) const noexcept;

  void take_dispatch_head(int source, int bank);
  void take_dispatch_rows(int source, int bank, int group);
  void carry_rows(int source, int bank, int group);
  void take_weights(int source, int bank);
  void take_answer(int source, int bank);
  void take_answer_rows(int source, int bank, int group);
  void carry_answer_rows(int source, const Arrival& arrival, int bank, int group);
  bool has_row(std::size_t lane, std::uint64_t epoch, int slot) const noexcept;
  void end(Arrival& arrival, int source, protocol::Kind kind);
  void end_answer(Arrival& arrival, int source, int bank);
  std::uint16_t row_ranks(int source, int bank, int token) const noexcept;
  std::size_t heads(int source, int rank) const noexcept;

  bool tell();
  void count_complete(int source, protocol::Kind kind);
  bool tell_kernels(int source, protocol::Kind kind);
  bool tell_peers(protocol::Kind kind);
  bool given_up(int peer) const noexcept;

  const relay::Site& site_;
  relay::Postings& postings_;
  std::shared_ptr<FerryPort> port_;
  Ferry ferry_;
  transport::Arrivals arrivals_;
  const int tokens_;
  const int slots_;  // Rows of an answer.
  std::array<std::uint64_t, protocol::kCellKinds> taken_{};
  std::vector<Arrival> dispatches_;  // [R][B]
  std::vector<Arrival> combines_;    // [R][B]
  std::deque<Ending> endings_;
  /// By source and kind: operations that have ended before an earlier one has; and the last before which all have.
  std::vector<std::array<std::vector<std::uint64_t>, protocol::kKinds>> ended_;
  std::vector<std::array<std::uint64_t, protocol::kKinds>> complete_;
  std::vector<std::array<std::uint64_t, protocol::kKinds>> told_;  // to the kernels
};

}  // namespace sluice::engine::cuda
