// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fifo.hpp"
#include "base/index_set.hpp"
#include "relay/site.hpp"
#include "transport/transport.hpp"

namespace sluice::relay {

/// What this rank puts to other nodes: messages, taken apart into chunks, and signs. A queue for each
/// peer, so that one that takes nothing holds up no other.
class Postings {
 public:
  /// Chunks of one operation, counted together until their memory may be overwritten.
  struct Account {
    protocol::Kind kind;
    int bank;
  };

  Postings(transport::Endpoint& endpoint, const Site& site);

  /// `number`: that comes with it, mod transport::Signal::kNumbers.
  void sign(int peer, window::Sign sign, int place = 0, std::uint32_t number = 0);

  /// A message to a slot of the peer, for places in a region of it: begin, its pieces, end.
  void begin(int peer, int slot, Account account, transport::Region to = kWindowRegion);
  /// Bytes of a region of this rank for a place there.
  void add(transport::Region from, std::uint64_t from_offset, std::uint64_t to_offset,
           std::uint64_t bytes);
  /// Rows: in one piece, where they lie as far apart here as there.
  void add_rows(transport::Region from, std::uint64_t from_offset, std::uint64_t from_stride,
                std::uint64_t to_offset, std::uint64_t to_stride, std::uint64_t row_bytes,
                int rows);
  void end();

  /// Posts what can be posted now; whether any chunk of a message was.
  bool post();
  /// While held, messages to a peer wait; signs do not.
  void hold(int peer, bool held) noexcept { to(peer).held = held; }
  /// Whether it was a chunk of a message.
  bool sent(const transport::Event& event) noexcept;
  /// The peer gets nothing more: what was not posted yet is dropped. What was is waited for as before.
  void close(int peer) noexcept;
  /// Nothing that was posted to a closed peer is waited for any more: its memory may be overwritten,
  /// whether it was read or not.
  void settle(int peer) noexcept;
  bool settled(int peer) const noexcept { return to_[static_cast<std::size_t>(peer)].settled; }

  /// Whether all chunks of the account are out of this rank's memory.
  bool settled(Account account) const noexcept { return outstanding_[number(account)] == 0; }
  /// Likewise, those to one peer.
  bool settled(int peer, Account account) const noexcept {
    const To& queue = to_[static_cast<std::size_t>(peer)];
    return queue.settled || queue.outstanding[number(account)] == 0;
  }
  /// Whether chunks to the peer are left to be posted, or posted and not out of this rank's memory.
  bool waits(int peer) const noexcept {
    const To& queue = to_[static_cast<std::size_t>(peer)];
    return queue.unsent > 0 || !queue.chunks.empty();
  }
  /// How often one was posted, or came out.
  std::uint64_t steps(int peer) const noexcept { return to_[static_cast<std::size_t>(peer)].steps; }
  /// Whether no message is left to be posted, or posted and not out of this rank's memory.
  bool idle() const noexcept;
  /// Messages to the peer that were begun and ended.
  std::uint64_t messages(int peer) const noexcept {
    return to_[static_cast<std::size_t>(peer)].messages;
  }
  /// Whether neither a message nor a sign is left to be posted to the peer.
  bool posted(int peer) const noexcept {
    const To& queue = to_[static_cast<std::size_t>(peer)];
    return queue.signs.empty() && queue.chunks.empty();
  }

 private:
  struct To {
    base::Fifo<std::uint32_t> signs;  // immediates
    base::Fifo<transport::Chunk> chunks;
    std::uint64_t unsent = 0;  // Bytes that were posted, and are not out of this rank's memory.
    std::uint64_t messages = 0;
    std::uint64_t steps = 0;
    std::vector<std::uint8_t> uses;          // of the peer's slots for this rank
    std::vector<std::uint32_t> outstanding;  // by account
    bool held = false;
    bool closed = false;
    bool settled = false;
  };

  /// A chunk's context: its bytes, and its account above them.
  static constexpr int kBytesBits = 32;
  static std::size_t account_of(std::uint64_t context) noexcept { return context >> kBytesBits; }
  static std::uint32_t bytes_of(std::uint64_t context) noexcept {
    return static_cast<std::uint32_t>(context);
  }
  /// The context of chunks that nobody waits for.
  static constexpr std::uint64_t kNoAccount = ~std::uint64_t{0};

  To& to(int peer) noexcept { return to_[static_cast<std::size_t>(peer)]; }
  /// Peers in turn, rotated, so that not all ranks begin with the same one; and back.
  int peer_of(int turn) const noexcept { return (site_.rank + turn) % site_.nodes.ranks(); }
  int turn_of(int peer) const noexcept {
    return (peer - site_.rank + site_.nodes.ranks()) % site_.nodes.ranks();
  }
  std::size_t number(Account account) const noexcept {
    return static_cast<std::size_t>(account.kind) * banks_ + static_cast<std::size_t>(account.bank);
  }
  void post_signs(int peer, To& queue);
  bool post_chunks(int peer, To& queue);
  /// Before a chunk of the account is put.
  void note_first(std::size_t account);

  transport::Endpoint& endpoint_;
  const Site& site_;
  std::size_t banks_;
  std::uint64_t unsent_max_;
  std::vector<To> to_;
  base::IndexSet waiting_;  // Turns of peers to whom something is left to be posted.
  std::vector<std::uint32_t> outstanding_;  // by account, all peers
  // The message between begin() and end().
  int peer_ = -1;
  int slot_ = 0;
  transport::Region region_ = kWindowRegion;
  std::size_t account_ = 0;
  std::size_t first_ = 0;
  std::size_t newest_ = kNoAccount;  // The account of the chunk that was posted last.
};

}  // namespace sluice::relay
