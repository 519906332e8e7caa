// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/libfabric/desk.hpp"
#include "transport/libfabric/library.hpp"
#include "transport/libfabric/rail.hpp"

namespace sluice::transport {

/// What peers write at this rank, over all of its rails: chunks, and how many of this rank's chunks they have
/// taken. Used by one thread, but for taken(): the one that polls, or a Receiver's.
class Inlet {
 public:
  /// in_words: immediates come as words, in the rings of the desk. apart: another thread polls than asks what was taken.
  Inlet(const Library& library, int rank, int ranks, Desk& desk, bool in_words, bool apart);

  /// Before the first poll. The rail outlives the inlet's last poll.
  void add(Rail& rail);

  /// Immediates of chunks that have come and can be read. Where the processor moves bytes, it does so here.
  std::size_t poll(std::span<std::uint32_t> immediates) noexcept;

  /// How many of this rank's chunks a peer has taken, as far as it was seen. By one thread.
  std::uint64_t taken(int peer) noexcept;

 private:
  static constexpr int kErrorsAtOnce = 1024;
  static constexpr int kTakenAtOnce = 32;  // Peers whose words are looked at in a poll.

  std::size_t poll_queue(Rail& rail, std::span<std::uint32_t> immediates) noexcept;
  std::size_t poll_words(std::size_t rail, std::span<std::uint32_t> immediates) noexcept;
  void note_taken(int peer) noexcept;
  void drop_errors(fid_cq* queue) const noexcept;

  const Library& library_;
  const int rank_;
  const int ranks_;
  const bool in_words_;
  const bool apart_;
  Desk& desk_;
  std::vector<Rail*> rails_;
  std::vector<std::uint64_t> heard_;  // [rails][ranks]: words.
  std::vector<std::atomic<std::uint64_t>> taken_;
  int next_taken_ = 0;    // Whose word is looked at first.
  std::size_t turn_ = 0;  // Which rail, and which peer, is looked at first.
  bool failed_ = false;   // A queue has, as was said.
};

}  // namespace sluice::transport
