// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "transport/libfabric.hpp"
#include "transport/libfabric/desk.hpp"
#include "transport/libfabric/inlet.hpp"
#include "transport/libfabric/rail.hpp"
#include "transport/libfabric/receiver.hpp"

namespace sluice::transport {

/// Chunks go out over rails in turn; what comes is the Inlet's. Where a Receiver looks for that, it does so on rails of its own:
/// peers write at those, and all of a rail is used by one thread (FI_THREAD_DOMAIN).
class LibfabricEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> open(const Library& library, int rank, int ranks,
                                                const LibfabricSettings& settings);

  const Traits& traits() const noexcept override { return traits_; }
  Result<Region> add_region(std::byte* base, std::size_t bytes) override;
  Result<Region> add_device_region(const DeviceRegion& region) override;
  Result<std::string> introduction() override;
  Status connect(int peer, std::string_view introduction) override;
  Posted put(const Chunk& chunk) override;
  std::size_t poll(std::span<Event> events) override;
  void took(int peer, int chunks) override;
  void abandon(int peer) override;
  bool drain() override { return true; }
  void idle(std::chrono::nanoseconds at_most) override;
  void wake() noexcept override;
  std::uint64_t bytes_put(int peer) const noexcept override;

 private:
  /// A write between its post and its completion. Its address is the provider's context, so the
  /// provider's part comes first.
  struct Post {
    enum class Kind : std::uint8_t { chunk, signal, tell };
    fi_context2 context;
    Kind kind = Kind::chunk;
    int peer = -1;
    std::uint32_t immediate = 0;
    std::uint64_t user = 0;
  };
  struct Path {  // To a peer, over one rail.
    fi_addr_t address = FI_ADDR_UNSPEC;
    RemoteMemory desk;
    std::vector<RemoteMemory> regions;
    std::uint64_t signalled = 0;
    std::deque<std::uint32_t> signals;  // That the provider could not take yet.
  };
  struct Peer {
    std::vector<Path> paths;  // One for each rail, once connected.
    std::size_t next_path = 0;
    std::uint64_t posted = 0;
    std::uint64_t taken = 0;  // Of the peer's, by this rank; and as the peer was told.
    std::uint64_t told = 0;
    bool telling = false;  // One tell at a time: none overtakes another.
    bool due = false;      // Is in due_.
    std::uint64_t bytes = 0;
    bool gone = false;
  };

  LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                    std::uint64_t tell_flags, bool apart, bool alone, base::Descriptor wake);
  Status open_rails(const fi_info& info);
  static Result<std::unique_ptr<Endpoint>> open_on(const Library& library, const Provider& provider,
                                                   int rank, int ranks,
                                                   const LibfabricSettings& settings);
  template <typename Add>
  Result<Region> add_to_rails(std::byte* base, const Add& add);

  Peer& of(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  std::size_t rails() const noexcept { return static_cast<std::size_t>(traits_.rails); }
  Rail& rail(std::size_t number) noexcept { return *rails_[number]; }
  /// What all peers may have on their way, tells not counted: they raise no entry here.
  std::size_t arrivals_max() const noexcept {
    return peers_.size() * static_cast<std::size_t>(traits_.window);
  }
  /// Where peers write: the same one, or one of the receiver's.
  Rail& rail_in(std::size_t number) noexcept { return *rails_[rails_.size() - rails() + number]; }
  bool in_words() const noexcept { return traits_.signals != SignalMode::immediate; }

  Post* new_post(Post::Kind kind, int peer);
  void release(Post* post) { free_posts_.push_back(post); }
  /// Posts it; otherwise releases `post`, and unless the provider is busy the peer is lost.
  Posted write(Rail::Write& write, std::size_t rail, Post* post);
  bool write_word(Post::Kind kind, int peer, std::size_t rail, std::size_t own, std::size_t remote,
                  std::uint64_t word);
  bool may_put(int peer);

  void signal(int peer, std::size_t rail, std::uint32_t immediate);
  void flush(int peer);
  void tell_taken(int peer);
  void note_due(int peer);
  void lose(int peer, long error);

  void begin();
  Status not_begun() const;
  std::size_t poll_sent(std::size_t rail, std::span<Event> events);
  std::size_t poll_arrived(std::span<Event> events);
  void take_errors(fid_cq* queue);

  const Library& library_;
  int rank_;
  Traits traits_;
  std::uint64_t tell_flags_;
  Desk desk_;
  base::Descriptor wake_;  // An eventfd.
  std::vector<Peer> peers_;
  std::vector<std::byte*> regions_;
  std::deque<Post> posts_;  // Outlive the rails, whose providers use them.
  std::vector<Post*> free_posts_;
  std::vector<std::unique_ptr<Rail>>
      rails_;  // Those out, and then the receiver's, if there is one.
  Inlet inlet_;
  std::deque<Event> ready_;
  std::vector<int> due_;  // Peers with something to flush or to be told.
  std::size_t turn_ = 0;  // Which rail is looked at first.
  bool refused_ = false;  // By a provider that has to be polled before it takes more.
  std::int64_t sent_polled_ns_ = 0;
  const bool apart_;  // There are rails for a receiver.
  const bool alone_;  // It has a processor to itself.
  bool begun_ = false;
  std::unique_ptr<Receiver> receiver_;  // Ends before all that it uses.
};

}  // namespace sluice::transport
