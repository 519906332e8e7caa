// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "support/random.hpp"
#include "transport/message.hpp"
#include "transport/transport.hpp"

namespace sluice::transport {

/// How a receiver finds out that a message is complete. All but the first are wrong on a network
/// that keeps no order.
enum class Scheme : std::uint8_t { per_message, running_count, last_chunk };

/// How much ranks say to each other. Every message has all chunks of `chunk_bytes` if it is full;
/// otherwise their number and lengths are drawn, up to these.
struct Load {
  int slots = 3;  // Messages on their way from one rank to another.
  std::size_t chunk_bytes = 1536;
  int chunks = 5;
  bool full = false;

  constexpr std::size_t slot_bytes() const {
    return chunk_bytes * static_cast<std::size_t>(chunks);
  }
};

/// One rank that sends messages of several chunks to all others, in slots that are used again when
/// the receiver has given them back, and checks what it gets. What a message holds follows from its
/// source, target and number.
class Talker {
 public:
  static std::size_t memory_bytes(int ranks, const Load& load = {}) {
    return 2 * static_cast<std::size_t>(ranks * load.slots) * load.slot_bytes();
  }

  Talker(Endpoint& endpoint, std::vector<std::byte>& memory, int rank, int ranks, int messages,
         Scheme scheme, bool naps = false, const Load& load = {})
      : endpoint_(endpoint),
        memory_(memory),
        rank_(rank),
        ranks_(ranks),
        messages_(messages),
        scheme_(scheme),
        naps_(naps),
        load_(load),
        arrivals_(2 * ranks * load.slots),
        peers_(static_cast<std::size_t>(ranks), Peer(load.slots)),
        expected_(load.chunk_bytes) {}

  /// Until all has been sent, received and given back.
  bool run(base::Deadline deadline) {
    while (!step({})) {
      if (deadline.expired()) return false;
    }
    return true;
  }
  /// Some of it. Whether all is done, but for what concerns ranks of `silent`.
  bool step(const std::set<int>& silent) {
    bool moved = false;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) moved = send(peer) || moved;
    }
    moved = receive() || moved;
    if (done(silent)) return true;
    if (!moved && naps_) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return false;
  }
  /// For ranks that are done: until all of them are.
  void keep_polling() { receive(); }

  std::int64_t wrong() const { return wrong_; }
  const std::set<int>& lost() const { return lost_; }
  std::uint64_t bytes_sent(int peer) const { return of(peer).bytes; }

 private:
  struct Peer {
    explicit Peer(int slots)
        : in_use(static_cast<std::size_t>(slots)),
          unsent(static_cast<std::size_t>(slots)),
          message(static_cast<std::size_t>(slots)),
          returns(static_cast<std::size_t>(slots)) {}
    int sent = 0;      // messages
    int returned = 0;  // slots that were given back
    int received = 0;
    std::vector<bool> in_use;
    std::vector<int> unsent;             // chunks of the slot's message
    std::vector<int> message;            // awaited in the slot, of that peer
    std::vector<std::uint32_t> returns;  // of the peer's slots
    std::deque<Chunk> queue;
    std::uint64_t bytes = 0;
    int chunks_seen = 0;  // running_count
  };
  Peer& of(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& of(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }

  static std::uint32_t mix(int source, int target, int message, int salt) {
    const auto pair = static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint32_t>(target);
    return static_cast<std::uint32_t>(support::Random::of(static_cast<std::uint64_t>(salt), pair,
                                                          static_cast<std::uint64_t>(message))
                                          .next());
  }
  int chunks_of(int source, int target, int message) const {
    if (load_.full) return load_.chunks;
    return 1 + static_cast<int>(mix(source, target, message, 1) %
                                static_cast<std::uint32_t>(load_.chunks));
  }
  std::size_t bytes_of(int source, int target, int message, int chunk) const {
    if (load_.full) return load_.chunk_bytes;
    return mix(source, target, message, 2 + chunk) % load_.chunk_bytes;  // 0: the immediate alone
  }
  static void fill(std::byte* out, std::size_t bytes, std::uint32_t seed) {
    for (std::size_t i = 0; i < bytes; ++i) {
      out[i] = static_cast<std::byte>((seed + i * 0x9e3779b1U) >> 24);
    }
  }

  std::size_t out_offset(int peer, int slot) const {
    return static_cast<std::size_t>(peer * load_.slots + slot) * load_.slot_bytes();
  }
  std::size_t in_offset(int peer, int slot) const {
    return out_offset(ranks_, 0) + out_offset(peer, slot);
  }
  // Slots of messages: by source; behind them slots that are given back: by receiver.
  int slot_number(int source, int slot) const { return source * load_.slots + slot; }
  int return_number(int receiver, int slot) const {
    return (ranks_ + receiver) * load_.slots + slot;
  }

  bool done(const std::set<int>& silent) const {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_ || silent.contains(peer)) continue;
      const Peer& p = of(peer);
      if (p.returned < messages_ || p.received < messages_ || !p.queue.empty()) return false;
      for (const int unsent : p.unsent) {
        if (unsent > 0) return false;
      }
    }
    return true;
  }

  bool send(int target) {
    Peer& peer = of(target);
    while (peer.sent < messages_ && is_free(peer, peer.sent % load_.slots)) {
      post(target, peer.sent++);
    }
    bool moved = false;
    while (!peer.queue.empty()) {
      const Posted posted = endpoint_.put(peer.queue.front());
      if (posted == Posted::busy) break;
      if (posted == Posted::gone) {
        peer.queue.clear();
        break;
      }
      peer.bytes += peer.queue.front().bytes;
      on_the_way_.emplace(peer.queue.front().context, peer.queue.front());
      peer.queue.pop_front();
      moved = true;
    }
    return moved;
  }

  void post(int target, int message) {
    Peer& peer = of(target);
    const int slot = message % load_.slots;
    peer.in_use[static_cast<std::size_t>(slot)] = true;
    const int chunks = chunks_of(rank_, target, message);
    const std::uint32_t immediate =
        Signal{slot_number(rank_, slot), chunks, static_cast<std::uint32_t>(message / load_.slots)}
            .encode();
    for (int i = 0; i < chunks; ++i) {
      Chunk chunk;
      chunk.peer = target;
      chunk.from = chunk.to = 0;
      chunk.from_offset =
          out_offset(target, slot) + static_cast<std::size_t>(i) * load_.chunk_bytes;
      chunk.to_offset = in_offset(rank_, slot) + static_cast<std::size_t>(i) * load_.chunk_bytes;
      chunk.bytes = static_cast<std::uint32_t>(bytes_of(rank_, target, message, i));
      chunk.immediate = immediate;
      chunk.context = ++chunks_;
      ++peer.unsent[static_cast<std::size_t>(slot)];
      fill(&memory_[chunk.from_offset], chunk.bytes, mix(rank_, target, message, 100 + i));
      // A hint, right or wrong.
      chunk.more = mix(rank_, target, message, 200 + i) % 2 == 0;
      peer.queue.push_back(chunk);
      if (scheme_ == Scheme::last_chunk && i + 1 < chunks) {
        peer.queue.back().immediate = Signal{Signal::kOwnSlots - 1 - rank_, 1, 0}.encode();
      }
    }
  }

  bool receive() {
    std::array<Event, 8> events;
    const std::size_t count = endpoint_.poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind == Event::Kind::lost && !lost_.insert(events[i].peer).second) ++wrong_;
      if (events[i].kind == Event::Kind::sent) sent(events[i]);
      if (events[i].kind == Event::Kind::arrived) arrived(events[i].immediate);
    }
    return count > 0;
  }

  static bool is_free(const Peer& peer, int slot) {
    const auto i = static_cast<std::size_t>(slot);
    return !peer.in_use[i] && peer.unsent[i] == 0;
  }

  // Once for every chunk, with its own number; from now on its memory is this rank's again.
  void sent(const Event& event) {
    const auto flight = on_the_way_.find(event.context);
    if (flight == on_the_way_.end() || flight->second.peer != event.peer) {
      ++wrong_;
      return;
    }
    const Chunk& chunk = flight->second;
    if (chunk.from >= 0) {
      std::memset(&memory_[chunk.from_offset], 0xee, chunk.bytes);
      const std::size_t slot =
          chunk.from_offset / load_.slot_bytes() % static_cast<std::size_t>(load_.slots);
      --of(event.peer).unsent[slot];
    }
    on_the_way_.erase(flight);
  }

  void arrived(std::uint32_t immediate) {
    const int number = Signal::decode(immediate).slot;
    if (number >= 2 * ranks_ * load_.slots) {  // last_chunk: of another chunk
      endpoint_.took(Signal::kOwnSlots - 1 - number, 1);
      return;
    }
    const int source = number / load_.slots % ranks_;
    endpoint_.took(source, 1);
    if (number >= ranks_ * load_.slots) {
      if (!arrivals_.note(immediate)) return;
      arrivals_.take(number);
      of(source).in_use[static_cast<std::size_t>(number % load_.slots)] = false;
      ++of(source).returned;
      return;
    }
    if (scheme_ == Scheme::running_count) return count_on(source);
    if (scheme_ == Scheme::last_chunk) return complete(source, number % load_.slots);
    if (!arrivals_.note(immediate)) return;
    arrivals_.take(number);
    complete(source, number % load_.slots);
  }

  // Complete when as many chunks have come as all messages up to this have.
  void count_on(int source) {
    Peer& peer = of(source);
    ++peer.chunks_seen;
    int needed = 0;
    for (int message = 0; message < messages_; ++message) {
      needed += chunks_of(source, rank_, message);
      if (needed > peer.chunks_seen) return;
      if (message >= peer.received) complete(source, message % load_.slots);
    }
  }

  // Checks a message, spoils what it left, and gives the slot back.
  void complete(int source, int slot) {
    Peer& peer = of(source);
    int& uses = peer.message[static_cast<std::size_t>(slot)];
    const int message = uses++ * load_.slots + slot;
    bool right = message < messages_;
    for (int i = 0; right && i < chunks_of(source, rank_, message); ++i) {
      const std::size_t bytes = bytes_of(source, rank_, message, i);
      std::byte* const at =
          &memory_[in_offset(source, slot) + static_cast<std::size_t>(i) * load_.chunk_bytes];
      fill(expected_.data(), bytes, mix(source, rank_, message, 100 + i));
      right = std::memcmp(at, expected_.data(), bytes) == 0;
      std::memset(at, 0x5a, bytes);
    }
    if (!right) ++wrong_;
    ++peer.received;
    Chunk give_back;
    give_back.peer = source;
    std::uint32_t& use = peer.returns[static_cast<std::size_t>(slot)];
    give_back.context = ++chunks_;
    give_back.immediate = Signal{return_number(rank_, slot), 1, use++}.encode();
    peer.queue.push_back(give_back);
  }

  Endpoint& endpoint_;
  std::vector<std::byte>& memory_;
  int rank_;
  int ranks_;
  int messages_;
  Scheme scheme_;
  bool naps_;
  Load load_;
  Arrivals arrivals_;
  std::vector<Peer> peers_;
  std::vector<std::byte> expected_;
  std::int64_t wrong_ = 0;
  std::uint64_t chunks_ = 0;
  std::map<std::uint64_t, Chunk> on_the_way_;  // put, and not yet `sent`
  std::set<int> lost_;
};

}  // namespace sluice::transport
