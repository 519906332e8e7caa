// SPDX-License-Identifier: MIT
#pragma once

#include <rdma/fi_endpoint.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/libfabric/desk.hpp"
#include "transport/libfabric/library.hpp"
#include "transport/libfabric/rail.hpp"
#include "transport/transport.hpp"

namespace sluice::transport {

/// What this rank writes at peers: chunks, over its rails in turn, their signals where those are words, and how many chunks
/// of theirs it has taken. Calls are as those of Endpoint, by one thread.
class Outlet {
 public:
  /// Of `traits` it uses the signals and the window. tell_flags: of writes of what was taken, none of which may overtake
  /// another.
  Outlet(const Library& library, int rank, int ranks, const Traits& traits,
         std::uint64_t tell_flags, Desk& desk);

  // Numbers of a rail's memory: its desk, and then the regions.
  static constexpr int kDeskMemory = 0;
  static constexpr int memory_of(Region region) noexcept { return kDeskMemory + 1 + region; }

  // Before the first put or poll. The rails outlive the last one.
  void add(Rail& rail) { rails_.push_back(&rail); }
  void add_memory(std::byte* base) { memories_.push_back(base); }

  /// To a peer, over one rail.
  struct Path {
    fi_addr_t address = FI_ADDR_UNSPEC;
    RemoteMemory desk;
    std::vector<RemoteMemory> regions;
    std::uint64_t signalled = 0;
    struct Signal {
      std::uint32_t immediate;
      std::uint64_t number;  // Of its chunk.
    };
    std::deque<Signal> signals;  // That the provider could not take yet.
  };
  /// One for each rail.
  void connect(int peer, std::vector<Path> paths) { of(peer).paths = std::move(paths); }

  /// busy: by the network. A peer's window is the caller's to keep.
  Posted put(const Chunk& chunk);
  void took(int peer, int chunks);
  void abandon(int peer);
  std::uint64_t mark(int peer) const noexcept { return of(peer).put; }
  bool is_out(int peer, std::uint64_t mark) const noexcept {
    return of(peer).gone || of(peer).out >= mark;
  }
  /// Those of kind sent and lost.
  std::size_t poll(std::span<Event> events);

 private:
  static constexpr int kErrorsAtOnce = 1024;
  /// A poll may be a call to the system. With nothing under way, as far as this rank was told, it is left out for so long: TCP
  /// providers say `sent` of the end of a message that they still hold, where the connection is full.
  static constexpr std::int64_t kQuietNs = 20'000;
  /// The peer is told what was taken of it this many times a window.
  static constexpr std::uint64_t kTellsPerWindow = 4;

  /// A write between its post and its completion. Its address is the provider's context, so the
  /// provider's part comes first.
  struct Post {
    enum class Kind : std::uint8_t { chunk, signal, tell };
    fi_context2 context;
    Kind kind = Kind::chunk;
    int peer = -1;
    std::uint32_t immediate = 0;
    std::uint64_t number = 0;  // Of the chunk, or of that whose signal it is.
    std::uint64_t user = 0;
  };
  struct Peer {
    std::vector<Path> paths;
    std::size_t next_path = 0;
    std::uint64_t put = 0;           // Chunks.
    std::uint64_t out = 0;           // So many of them are out, signals included,
    std::deque<std::uint8_t> later;  // and which of those behind them.
    std::uint64_t taken = 0;         // Of the peer's, by this rank; and as the peer was told.
    std::uint64_t told = 0;
    bool telling = false;  // One tell at a time: none overtakes another.
    bool due = false;      // Is in due_.
    bool gone = false;
  };

  Peer& of(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& of(int peer) const noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  bool in_words() const noexcept { return signals_ != SignalMode::immediate; }

  Rail::Piece piece_of(const Path& path, const Piece& piece) const noexcept;
  Rail::Piece word_of(const Path& path, std::size_t own, std::size_t remote,
                      std::uint64_t word) noexcept;
  Post* new_post(Post::Kind kind, int peer);
  void release(Post* post) { free_posts_.push_back(post); }
  /// Posts it; otherwise releases `post`, and unless the provider is busy the peer is lost.
  Posted write(Rail::Write& write, std::size_t rail, Post* post);
  bool write_word(Post* post, std::size_t rail, std::size_t own, std::size_t remote,
                  std::uint64_t word);
  void signal(int peer, std::size_t rail, Path::Signal signal);
  void note_out(int peer, std::uint64_t number);
  void flush(int peer);
  void tell_taken(int peer);
  void note_due(int peer);
  void lose(int peer, long error);
  std::size_t poll_sent(std::size_t rail, std::span<Event> events);
  void take_errors(fid_cq* queue);

  const Library& library_;
  const int rank_;
  const SignalMode signals_;
  const std::uint64_t window_;
  const std::uint64_t tell_flags_;
  Desk& desk_;
  std::vector<Rail*> rails_;
  std::vector<std::byte*> memories_;
  std::vector<Peer> peers_;
  std::deque<Post> posts_;
  std::vector<Post*> free_posts_;
  std::deque<Event> ready_;
  std::vector<int> due_;  // Peers with something to flush or to be told.
  std::size_t turn_ = 0;  // Which rail is looked at first.
  bool failed_ = false;   // A queue has, as was said.
  bool refused_ = false;  // By a provider that has to be polled before it takes more.
  std::int64_t polled_ns_ = 0;
};

}  // namespace sluice::transport
