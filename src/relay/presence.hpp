// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::relay {

/// The words that ranks of different nodes write into each other's lanes, carried by signs: what they
/// have read, whom they have given up, that they live. Signs have no memory and may overtake each
/// other: those that say 'one more' are counted, the others say the same whenever they come.
///
/// Every rank sends them to its rail peer on each node, which writes them into the lanes of all ranks
/// there. A source of which nothing is heard is marked as gone in all of them.
class Presence {
 public:
  Presence(const Site& site, Postings& postings, std::chrono::nanoseconds patience);

  /// Sends what is new; whether anything is.
  bool tell(std::int64_t now_ns);
  /// Looks for sources that have fallen silent, and drops what was to be put to ranks that are gone.
  void watch(std::int64_t now_ns);
  /// A sign has come.
  void take(int source, int sign, std::int64_t now_ns);
  /// Something else of the source has come.
  void heard(int source, std::int64_t now_ns) noexcept { heard_ns_[index(source)] = now_ns; }
  /// Whether the source was given up: nothing of it counts any more.
  bool gone(int source) const noexcept { return gone_[index(source)] != 0; }
  /// The endpoint has lost the peer.
  void lost(int peer);

  void say_goodbye();
  /// Whether every rank of another node has closed, or is gone.
  bool all_closed() const noexcept;

 private:
  static std::size_t index(int value) noexcept { return static_cast<std::size_t>(value); }
  bool tell_read(protocol::Kind kind);
  bool tell_accusations();
  void sign_all(window::Sign sign);
  void count_up(int source, std::size_t offset);
  void watch_neighbours(std::int64_t now_ns);
  void mark_gone(int source);

  const Site& site_;
  Postings& postings_;
  std::int64_t patience_ns_;
  std::int64_t next_beat_ns_ = 0;
  std::int64_t next_watch_ns_ = 0;
  std::uint64_t beats_ = 0;  // of this rank, as last told
  std::array<std::uint64_t, protocol::kKinds> told_{};
  std::vector<std::uint8_t> accused_;  // [R] by this rank, and said so
  std::vector<int> unheard_;  // [nodes] accusations that are not known to have been passed on
  std::vector<std::int64_t> heard_ns_;  // [R]
  std::vector<std::uint64_t> alive_;    // [R] of neighbours, as last seen
  std::vector<std::uint8_t> gone_;      // [R]
  std::vector<std::uint8_t> closed_;    // [R]
};

}  // namespace sluice::relay
