// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "relay/beats.hpp"
#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::relay {

/// Who is there. The words that ranks of different nodes write into each other's lanes are carried by
/// signs: what they have read, whom they have given up, that they live. Signs have no memory and may
/// overtake each other: those that say 'one more' are counted, signs of life are numbered, the others say the same whenever
/// they come. Every rank sends them to its rail peer on each node, which writes them into the lanes of all
/// ranks there.
///
/// **Leases** (docs/relay.md). The rank that serves a source here, and it alone, decides that the ranks
/// of this node overwrite what the source may still be sent: when it has heard nothing for `patience`. (Ranks of which neither
/// serves the other do without it when one has learnt that the other gave it up.)
/// It answers every beat with an echo. So a rank one of whose beats was echoed knows that until `patience` after it sent
/// that one nothing was overwritten, and takes what has arrived by then; what arrives later waits for the echo of a later
/// beat, however long this rank, or the network, stood still.
class Presence {
 public:
  Presence(const Site& site, Postings& postings, std::chrono::nanoseconds patience);

  /// Sends what is new; whether anything is.
  bool tell(std::int64_t now_ns);
  /// Looks for ranks that have fallen silent, and closes the way to those that are gone.
  void watch(std::int64_t now_ns);
  /// A sign has come, and a number with it.
  void take(const window::RelaySlot& slot, std::uint32_t number, std::int64_t now_ns);
  /// Something else of the source has come.
  void heard(int source, std::int64_t now_ns) noexcept { heard_ns_[index(source)] = now_ns; }
  /// Whether the rank was given up: nothing of it counts any more.
  bool gone(int rank) const noexcept { return gone_[index(rank)] != 0; }
  /// Whether the source, which this rank has no lease from, has given it up: what still arrives may have been overwritten.
  bool shut_out(int source) const noexcept;
  /// Whether what had arrived of the source by then is what it has sent.
  bool covered(int source, std::int64_t arrived_ns) const noexcept;
  /// The endpoint has lost the peer.
  void lost(int peer);
  /// This rank can no longer be relied upon: it gives all other nodes up.
  void give_up_all(const char* why);

  void say_goodbye();
  /// Whether the rank, of another node, may still need this one, or this one it.
  bool counts(int rank) const noexcept;
  /// Whether every rank of another node that counts has closed.
  bool all_closed() const noexcept;

 private:
  /// To the rail peer on another node.
  struct Link {
    Beats beats;
    int unheard = 0;          // Accusations that are not known to have been passed on.
    std::int64_t cut_ns = 0;  // Since when nothing goes there; 0: something does.
    bool cut() const noexcept { return cut_ns != 0; }
  };

  /// To a rank with which there is no link.
  struct Path {
    std::int64_t begun_ns = 0;  // When it was first used; 0: it was not.
    std::uint64_t steps = 0;    // As last seen.
    std::int64_t since_ns = 0;  // When that was.
  };

  struct Death {
    std::int64_t since_ns = 0;
    std::optional<window::Sign> told;  // died, ended
  };

  static std::size_t index(int value) noexcept { return static_cast<std::size_t>(value); }
  Link& link(int node) noexcept { return links_[index(node)]; }
  bool tell_read(protocol::Kind kind);
  bool tell_accusations();
  void tell_beat(std::int64_t now_ns);
  void tell_death(int neighbour, std::int64_t now_ns);
  void sign_all(window::Sign sign, int place = 0);
  void count_up(int source, std::size_t offset);
  void echo(int source, std::uint32_t number);

  void watch_sources(std::int64_t now_ns);
  void watch_links(std::int64_t now_ns);
  void watch_neighbours(std::int64_t now_ns, bool was_away);
  void watch_peers(std::int64_t now_ns);
  void watch_paths(std::int64_t now_ns, bool was_away);
  bool is_apart(int peer) const noexcept { return site_.apart(site_.rank, peer); }
  void give_up_alone(int peer);
  void settle_accused(int node);
  bool is_accused_by(int rank) const noexcept;
  bool closed(int rank) const noexcept;
  bool passes_nothing_on(int neighbour) const noexcept;
  bool reported_lost(int source) const noexcept;
  bool hung_up(int source, std::int64_t now_ns);
  void give_up(int rank, int at, std::uint64_t how);
  void cut(int node, const char* why);
  bool ends_well(int node) const noexcept;

  const Site& site_;
  Postings& postings_;
  const std::int64_t patience_ns_;
  const std::int64_t beat_ns_;
  std::int64_t next_beat_ns_ = 0;
  std::int64_t next_watch_ns_ = 0;
  std::int64_t watched_ns_ = 0;
  bool closing_ = false;
  std::uint64_t beats_ = 0;  // of this rank, as last told
  std::array<std::uint64_t, protocol::kKinds> told_{};
  std::vector<Link> links_;               // [nodes]
  std::vector<std::uint8_t> accused_;     // [R] by this rank, and said so
  std::vector<std::int64_t> heard_ns_;    // [R]
  std::vector<std::int64_t> parted_ns_;   // [R] since when a source gets no echoes; 0: it does
  std::vector<std::int64_t> hung_up_ns_;  // [R] since when; -1: and yet it lives
  std::vector<std::uint64_t> alive_;      // [R] of neighbours, as last seen
  std::vector<Death> deaths_;             // [R] of neighbours
  std::vector<Path> paths_;               // [R]
  std::vector<std::uint8_t> gone_;        // [R]
};

}  // namespace sluice::relay
