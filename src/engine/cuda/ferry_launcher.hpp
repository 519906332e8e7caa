// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/cuda/far_rows.hpp"
#include "engine/cuda/ferry.hpp"
#include "engine/cuda/launch_thread.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/device_memory.hpp"
#include "memory/cuda/device_pool.hpp"
#include "window/far_lanes.hpp"

/// The host's side of the ferry (ferry.hpp): what it needs on a GPU, its rings, and its launches.
namespace sluice::engine::cuda {

/// What the progress thread of a rank needs on its GPU. It may need it for longer than the engine does.
struct FerryPort {
  int device = 0;
  FerryArgs args;
  void* stream = nullptr;     // Its own: cudaStream_t.
  std::byte* host = nullptr;  // This rank's host memory.
  std::size_t rings = 0;      // Offset of the items there; behind them, of the counts.
  FarRows rows;
  window::PacketLayout layout;
  std::vector<window::FarLanes> lanes;  // [R]
  std::shared_ptr<std::vector<memory::DeviceMemory>> windows;
  std::shared_ptr<memory::DevicePool> pool;
  std::shared_ptr<void> state;
  std::shared_ptr<void> worked;              // A State: what operations have done.
  std::shared_ptr<void> args_of_operations;  // A copy of `args`, in GPU memory.
  std::shared_ptr<void> board;               // A Board: whom the kernels have given up.
  std::shared_ptr<void> memory;              // `host`, pinned.

  FerryPort() = default;
  ~FerryPort();
  FerryPort(const FerryPort&) = delete;
  FerryPort& operator=(const FerryPort&) = delete;
};

/// Gives items to the kernel that carries them, in turn to its blocks, and launches it when none runs. Of one thread, whose
/// current GPU is the port's for as long as this is there.
class Ferry {
 public:
  explicit Ferry(const FerryPort& port);
  ~Ferry() { expect(false); }
  Ferry(const Ferry&) = delete;
  Ferry& operator=(const Ferry&) = delete;

  /// Bytes of host memory into the lanes of `source` at ranks of this node. Multiples of packets.
  void carry(std::size_t from, std::size_t to, std::size_t bytes, std::uint16_t ranks, int source) {
    carry_pieces(from, to, bytes, ranks, source, FerryItem::kPackets);
  }
  /// Likewise of the memory of rows, in latency mode.
  void carry_packets_of_rows(std::size_t from, std::size_t to, std::size_t bytes,
                             std::uint16_t ranks, int source) {
    carry_pieces(from, to, bytes, ranks, source, FerryItem::kRowPackets);
  }
  /// Where a token is, in throughput mode.
  struct Token {
    int source;
    int bank;
    int token;
  };
  /// A row of so many packets into this rank's landing, and word of it, `tag`, to ranks of this node.
  void carry_row(Token token, std::uint32_t tag, std::size_t packets, std::uint16_t ranks);
  /// An answer with its rows, each of so many packets; or a sum of them.
  void carry_answer(Token token, std::size_t packets, bool row_per_route);
  /// What those at `places` of this node have answered of a token of home `token.source`, added up, into what goes there.
  void carry_sum(Token token, std::uint32_t tag, DType codec, std::uint16_t places);
  /// Such a sum of the node of `token.source`.
  void carry_sum_answer(Token token, std::size_t packets);
  /// That no more of them come in an epoch.
  void tell_summed(std::size_t to, std::uint64_t epoch, int source);
  /// A word into the lane of `source` at this rank.
  void tell(std::size_t to, std::uint64_t word, int source);
  /// A one, as a word, into the lanes of `source` at ranks of this node.
  void accuse(std::size_t to, std::uint16_t ranks, int source);
  /// Whether more is to come, of operations that are under way. Then whoever carries it is there already, and waits for longer:
  /// it takes 20 us and more until one that is launched carries something.
  void expect(bool more);
  /// Passes on what there is room for; whether anything was, or has been carried. Throws where CUDA fails.
  bool step();
  /// How many items were added, and how many of them, in this order, have been carried.
  std::uint64_t added() const noexcept { return pushed_ + waiting_.size(); }
  std::uint64_t carried() const noexcept { return carried_; }
  bool idle() const noexcept { return carried_ == added(); }
  /// Whether the last launch says that it has ended.
  bool ended() const noexcept;
  std::uint64_t launches() const noexcept { return launched_; }

 private:
  static std::uint64_t place_of(const Token& token) noexcept;
  static FerryItem word_at(std::size_t to, std::uint64_t word) noexcept;
  void carry_pieces(std::size_t from, std::size_t to, std::size_t bytes, std::uint16_t ranks,
                    int source, std::uint32_t what);
  void add(FerryItem item, int source, std::uint32_t what);
  bool has_room() const noexcept;
  void push(FerryItem item);
  bool count();
  void flush();
  std::uint64_t& line(int number) const noexcept;

  const memory::DeviceGuard gpu_;
  const FerryPort& port_;
  LaunchThread launches_;
  /// Until step(), which passes on at once what belongs together: a block looks for more only when it has carried what it
  /// has found. Their marks without the turn.
  std::deque<FerryItem> waiting_;
  std::uint64_t pushed_ = 0;
  std::array<std::uint64_t, kFerryBlocks> done_{};  // Of each ring.
  std::uint64_t carried_ = 0;
  std::uint64_t launched_ = 0;
  bool expects_ = false;
  bool due_ = false;  // A launch, before there is anything to carry.
};

}  // namespace sluice::engine::cuda
