// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/index_set.hpp"
#include "base/near_wrap.hpp"
#include "transport/transport.hpp"

namespace sluice::transport {

struct BundlingSettings {
  /// Chunks of up to so many bytes travel together; 0: none do, but what a peer bundles is taken.
  std::uint32_t chunk_bytes_max = 16000;
  /// Chunks without bytes wait for company for so long.
  std::chrono::nanoseconds patience = std::chrono::microseconds(8);
  /// Chunks of more take along the bundle that they find, where the network takes two pieces, unless another one comes next.
  std::uint32_t copied_bytes_max = 2000;
  /// What goes along, and is no longer than this, waits for another one that is put next, if that can go along, too.
  std::uint32_t held_bytes_max = 65536;
};

/// What is put to one peer between two polls travels as one chunk of the endpoint below, if it is
/// short: every put costs both sides some 5 us on TCP, however short it is. The receiver copies what
/// has come to where it belongs, and tells of it as if it had come by itself.
///
/// **Along.** Where the network takes chunks of several pieces, a long one that finds a bundle takes it along, instead
/// of being copied into it, or a chunk of its own: the bundle has an entry for it, and its bytes are another piece, which comes
/// to where it belongs. It is `sent` when the bundle is. If there is another one behind it (Chunk::more), one that fits a bundle leaves
/// that to it, and is copied; and one that does not, but is not much longer, waits for it, if there may be a piece more.
///
/// **Bundles.** A pair of ranks has kBundles places, each of kBundleBytes, at the receiver, used in turn:
///   bundle := header (entry bytes)[n]
/// and the sender has as many, into which put() copies: such a chunk is `sent` at once.
/// **Why no place is overwritten before it is read.** The receiver counts the bundles of a sender that it has
/// emptied, in order of their numbers, and says how many in its own bundles, and, when half of the places are not
/// told of, in a chunk without bytes (which needs no place, so two ranks that wait for each other's places do
/// not wait for ever). The sender uses a place again when the bundle that was in it is among them, and when the
/// endpoint below has said `sent`. Counts may overtake each other: only what is ahead of the last one, by no more than
/// there are places, counts. It is told modulo 4096: one that is late by 4,088 bundles of the pair would be
/// taken for new.
class BundlingEndpoint final : public Endpoint {
 public:
  static constexpr int kBundles = 8;
  static constexpr std::size_t kBundleBytes = std::size_t{16} << 10;

  /// Adds its own region before those of the caller. All ranks of a network have one.
  static Result<std::unique_ptr<Endpoint>> over(std::unique_ptr<Endpoint> below, int rank,
                                                int ranks, const BundlingSettings& settings);

  ~BundlingEndpoint() override = default;
  BundlingEndpoint(const BundlingEndpoint&) = delete;
  BundlingEndpoint& operator=(const BundlingEndpoint&) = delete;

  const Traits& traits() const noexcept override { return traits_; }
  Result<Region> add_region(std::byte* base, std::size_t bytes) override;
  Result<Region> add_device_region(const DeviceRegion& region) override;
  /// What is told of this rank besides the endpoint below's own introduction.
  struct Introduction {
    std::uint64_t device_regions = 0;  // Of the caller's, those in GPU memory: a bit each.
    std::string below;

    std::string encode() const;
    /// False: it is cut short, or too long.
    static bool decode(std::string_view text, Introduction& out);
  };
  Result<std::string> introduction() override;
  Status connect(int peer, std::string_view introduction) override;
  Posted put(const Chunk& chunk) override;
  std::size_t poll(std::span<Event> events) override;
  void took(int peer, int chunks) override;
  void abandon(int peer) override;
  std::optional<std::uint64_t> mark(int peer) override;
  bool is_out(int peer, std::uint64_t mark) const override { return below_->is_out(peer, mark); }
  std::uint64_t bytes_put(int peer) const noexcept override {
    return peers_[static_cast<std::size_t>(peer)].bytes;
  }

 private:
  struct Header;
  struct Entry;
  struct Memory {
    std::byte* base = nullptr;  // Null: a GPU's, which the processor does not touch.
    std::size_t bytes = 0;
  };
  struct Peer {
    // The bundle that is being filled, in its place.
    std::size_t filled = 0;  // Bytes; 0: none is.
    std::uint32_t entries = 0;
    std::int64_t since_ns = 0;            // Its first entry.
    bool only_immediates = false;         // All of them.
    std::uint32_t put = base::kNearWrap;  // Bundles, and how many the peer has emptied.
    std::uint32_t emptied_there = base::kNearWrap;
    std::array<bool, kBundles> unsent{};  // Places here that the endpoint below may read.
    std::vector<Piece> held;              // What goes along with the bundle that is being filled,
    std::vector<std::uint64_t> held_contexts;
    std::uint64_t held_bytes = 0;
    std::array<std::vector<std::uint64_t>, kBundles>
        along;  // and contexts of what went along with those before.
    // Of the peer's bundles: how many were emptied here, which after them, and what it was told.
    std::uint32_t emptied = base::kNearWrap;
    std::array<bool, kBundles> emptied_early{};
    std::uint32_t told = base::kNearWrap;
    std::uint64_t owed = 0;  // Chunks of bundles that the caller has yet to take.
    std::uint64_t bytes = 0;
    bool gone = false;
    std::uint64_t device_regions = 0;  // Of the peer's regions, those in GPU memory: a bit each.
  };

  BundlingEndpoint(std::unique_ptr<Endpoint> below, int rank, int ranks,
                   const BundlingSettings& settings);

  Peer& of(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  bool of_hosts(const Chunk& chunk) noexcept;
  bool fits_bundle(const Chunk& chunk) noexcept;
  bool finds_bundle(const Chunk& chunk) noexcept;
  bool may_wait(const Chunk& chunk) noexcept;
  Posted put_along(const Chunk& chunk);
  /// In this rank's region: where bundles of a peer arrive, and where those for it are made.
  static std::size_t arrival_place(int source, int place) noexcept;
  std::size_t departure_place(int target, int place) const noexcept;
  Posted put_alone(Chunk chunk);
  /// With what goes along.
  Posted flush(int target);
  /// Room for an entry in the bundle that is being filled; null: there is none now.
  std::byte* room(int target, std::size_t bytes);
  void flush_all();
  void tell_emptied(int source);
  void take(const Event& event);
  void took_away(int target, std::size_t place);
  void empty(int source, int place);
  void take_count(int source, std::uint32_t count) noexcept;
  void lose(int peer);

  std::unique_ptr<std::byte[]> memory_;  // Outlives the endpoint below.
  std::unique_ptr<Endpoint> below_;
  Traits traits_;
  const int rank_;
  const int ranks_;
  const BundlingSettings settings_;
  std::vector<Memory> regions_;
  std::vector<Peer> peers_;
  base::IndexSet filling_;  // Peers whose bundle is being filled.
  base::IndexSet telling_;  // Peers who are to be told how many were emptied, if no bundle does it.
  std::deque<Event> ready_;
};

}  // namespace sluice::transport
