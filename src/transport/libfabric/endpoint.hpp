// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "transport/libfabric.hpp"
#include "transport/libfabric/desk.hpp"
#include "transport/libfabric/rail.hpp"

namespace sluice::transport {

class LibfabricEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> open(int rank, int ranks,
                                                const LibfabricSettings& settings);

  const Traits& traits() const noexcept override { return traits_; }
  Result<Region> add_region(std::byte* base, std::size_t bytes) override;
  Result<std::string> introduction() override;
  Status connect(int peer, std::string_view introduction) override;
  Posted put(const Chunk& chunk) override;
  std::size_t poll(std::span<Event> events) override;
  void took(int peer, int chunks) override;
  void abandon(int peer) override;
  void idle(std::chrono::nanoseconds at_most) override;
  void wake() noexcept override;
  std::uint64_t bytes_put(int peer) const noexcept override;

 private:
  /// A chunk between put() and its completion. Its address is the provider's context, so the
  /// provider's part comes first.
  struct Post {
    fi_context2 context;
    int peer = -1;
    int rail = -1;
    std::uint32_t immediate = 0;
    std::uint64_t user = 0;
  };
  /// A word that is to be written at a peer.
  struct Word {
    std::uint64_t value = 0;
    std::uint64_t offset = 0;
  };
  struct Path {  // To a peer, over one rail.
    fi_addr_t address = FI_ADDR_UNSPEC;
    RemoteMemory desk;
    std::vector<RemoteMemory> regions;
    std::uint64_t signalled = 0;
    std::uint64_t heard = 0;
    std::deque<Word> words;  // That the provider could not take yet.
  };
  struct Peer {
    std::vector<Path> paths;  // One for each rail, once connected.
    std::size_t next_path = 0;
    std::uint64_t posted = 0;
    std::uint64_t taken = 0;  // Of its chunks, by this rank; and as the peer was told.
    std::uint64_t told = 0;
    std::uint64_t bytes = 0;
    bool gone = false;
  };

  LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                    base::Descriptor wake);

  Peer& of(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  Rail& rail(std::size_t number) noexcept { return *rails_[number]; }
  bool in_words() const noexcept { return traits_.signals != SignalMode::immediate; }

  void signal(int peer, std::size_t rail, std::uint32_t immediate);
  void flush(int peer, std::size_t rail);
  void tell_taken(int peer);
  void lose(int peer);
  void release(Post* post) { free_posts_.push_back(post); }

  std::size_t poll_sent(std::size_t rail, std::span<Event> events);
  std::size_t poll_arrived(std::size_t rail, std::span<Event> events);
  std::size_t poll_words(std::size_t rail, std::span<Event> events);
  void take_error(fid_cq* queue);

  const Library& library_;
  int rank_;
  Traits traits_;
  Desk desk_;
  base::Descriptor wake_;  // An eventfd.
  std::vector<Peer> peers_;
  std::vector<std::byte*> regions_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::deque<Post> posts_;
  std::vector<Post*> free_posts_;
  std::deque<Event> ready_;
};

}  // namespace sluice::transport
