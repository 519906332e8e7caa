// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/libfabric.hpp"
#include "transport/libfabric/desk.hpp"
#include "transport/libfabric/inlet.hpp"
#include "transport/libfabric/outlet.hpp"
#include "transport/libfabric/rail.hpp"
#include "transport/libfabric/receiver.hpp"

namespace sluice::transport {

/// What goes is the Outlet's, what comes the Inlet's. Where a Receiver looks for that, it does so on rails of its own: peers
/// write at those, and all of a rail is used by one thread (FI_THREAD_DOMAIN).
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
  void took(int peer, int chunks) override { outlet_.took(peer, chunks); }
  void abandon(int peer) override;
  std::optional<std::uint64_t> mark(int peer) override { return outlet_.mark(peer); }
  bool is_out(int peer, std::uint64_t mark) const override { return outlet_.is_out(peer, mark); }
  std::uint64_t bytes_put(int peer) const noexcept override;

 private:
  struct Peer {
    std::uint64_t posted = 0;
    std::uint64_t bytes = 0;
    bool gone = false;
  };

  LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                    std::uint64_t tell_flags, std::string loopback_network,
                    std::uint32_t address_format, bool apart, bool alone);
  Status open_rails(const Provider& provider);
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

  void begin();
  Status not_begun() const;
  std::size_t poll_arrived(std::span<Event> events);

  const Library& library_;
  int rank_;
  Traits traits_;
  const std::string loopback_network_;  // LibfabricSettings::loopback_network
  const std::uint32_t address_format_;
  const bool apart_;  // There are rails for a receiver.
  const bool alone_;  // It has a processor to itself.
  Desk desk_;
  std::vector<Peer> peers_;
  std::size_t regions_ = 0;
  Outlet outlet_;  // Its posts outlive the rails, whose providers use them.
  std::vector<std::unique_ptr<Rail>>
      rails_;  // Those out, and then the receiver's, if there is one.
  Inlet inlet_;
  bool begun_ = false;
  bool versions_differ_ = false;        // Which was told.
  std::unique_ptr<Receiver> receiver_;  // Ends before all that it uses.
};

}  // namespace sluice::transport
