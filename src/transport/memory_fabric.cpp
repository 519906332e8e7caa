// SPDX-License-Identifier: MIT
#include "transport/memory_fabric.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice::transport {

namespace {

std::string random_name() {
  std::random_device device;
  return "memory " + std::to_string(device()) + " " + std::to_string(device());
}

}  // namespace

/// All that the endpoints share, under one lock.
class MemoryFabric::Network {
 public:
  Network(int ranks, const Adversity& adversity)
      : adversity_(adversity),
        name_(random_name()),
        dice_(adversity.seed),
        ranks_(static_cast<std::size_t>(ranks)) {
    for (Rank& rank : ranks_) rank.toward.resize(static_cast<std::size_t>(ranks));
    traits_.provider = "memory";
    traits_.put_bytes_max = adversity.put_bytes_max;
    traits_.window = adversity.window;
    traits_.device_memory = adversity.device_memory;
    traits_.pieces_max = adversity.pieces_max;
  }

  const Traits& traits() const noexcept { return traits_; }
  /// Of this one among all, whatever process they are in.
  const std::string& name() const noexcept { return name_; }

  Region add_region(int rank, const DeviceRegion& region) {
    const std::lock_guard lock(mutex_);
    of(rank).regions.push_back(region);
    return static_cast<Region>(of(rank).regions.size()) - 1;
  }

  Posted put(int rank, const Chunk& chunk) {
    const std::lock_guard lock(mutex_);
    Toward& toward = this->toward(rank, chunk.peer);
    if (toward.gone) return Posted::gone;
    if (toward.untaken >= adversity_.window || happens(adversity_.refusal)) return Posted::busy;
    ++toward.untaken;
    auto flight = std::make_shared<Flight>();
    flight->source = rank;
    flight->chunk = chunk;
    if (chunk.bytes > 0) {
      flight->pieces.push_back(
          {chunk.from, chunk.from_offset, chunk.to, chunk.to_offset, chunk.bytes});
    }
    flight->pieces.insert(flight->pieces.end(), chunk.with.begin(), chunk.with.end());
    flight->chunk.with = {};
    std::size_t bytes = 0;
    for (const Piece& piece : flight->pieces) bytes += piece.bytes;
    if (bytes > traits_.put_bytes_max || chunk.with.size() >= traits_.pieces_max ||
        (chunk.bytes == 0 && !chunk.with.empty())) {
      throw std::logic_error("a chunk of more than the network in memory takes");
    }
    toward.bytes += bytes;
    if (!happens(adversity_.late_read)) read(*flight);
    of(rank).unsent.push_back(flight);
    if (!of(chunk.peer).cut_off && !of(rank).cut_off) {
      of(chunk.peer).on_the_way.push_back(std::move(flight));
    }
    return Posted::yes;
  }

  std::size_t poll(int rank, std::span<Event> events) {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    while (count < events.size() && !happens(adversity_.delay)) {
      const std::optional<Event> event = next_event(rank);
      if (!event) break;
      events[count++] = *event;
    }
    return count;
  }

  void took(int rank, int peer, int chunks) {
    const std::lock_guard lock(mutex_);
    Toward& source = toward(rank, peer);
    source.owed += chunks;
    // In portions, as an endpoint of libfabric tells of them.
    if (source.owed < std::max(1, adversity_.window / 4)) return;
    toward(peer, rank).untaken -= std::exchange(source.owed, 0);
  }

  void abandon(int rank, int peer) {
    const std::lock_guard lock(mutex_);
    toward(rank, peer).gone = true;
  }

  std::uint64_t bytes_put(int rank, int peer) {
    const std::lock_guard lock(mutex_);
    return toward(rank, peer).bytes;
  }

  /// The rank's memory is about to go.
  void close(int rank) {
    const std::lock_guard lock(mutex_);
    for (Rank& peer : ranks_) {
      std::erase_if(peer.on_the_way, [&](const std::shared_ptr<Flight>& flight) {
        return flight->source == rank && !try_read(*flight);
      });
    }
    of(rank).unsent.clear();
    of(rank).on_the_way.clear();
    of(rank).cut_off = true;
  }

  void cut_off(int rank, bool told) {
    const std::lock_guard lock(mutex_);
    of(rank).cut_off = true;
    of(rank).on_the_way.clear();
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
      if (peer == rank) continue;
      std::erase_if(of(peer).on_the_way, [&](const std::shared_ptr<Flight>& flight) {
        return flight->source == rank && happens(512);
      });
      if (told) of(peer).lost.push_back(rank);
    }
  }

 private:
  struct Flight {
    int source = -1;
    Chunk chunk;
    std::vector<Piece> pieces;
    std::optional<std::vector<std::byte>> bytes;  // Of all pieces, once they were read.
  };
  /// What one rank knows of a peer.
  struct Toward {
    int untaken = 0;  // Of this rank's chunks; and the peer's that it was not told of yet.
    int owed = 0;
    std::uint64_t bytes = 0;
    bool gone = false;
  };
  struct Rank {
    std::vector<DeviceRegion> regions;  // Those of the host have no `copy`.
    std::vector<Toward> toward;
    std::deque<std::shared_ptr<Flight>> unsent;      // of this rank
    std::deque<std::shared_ptr<Flight>> on_the_way;  // to this rank
    std::deque<int> lost;                            // peers of which it is to be told
    bool cut_off = false;
  };

  Rank& of(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  Toward& toward(int rank, int peer) noexcept {
    return of(rank).toward[static_cast<std::size_t>(peer)];
  }
  bool happens(int probability) { return static_cast<int>(dice_() % 1024) < probability; }

  const DeviceRegion& memory(int rank, Region region) noexcept {
    return of(rank).regions[static_cast<std::size_t>(region)];
  }
  static void copy(const DeviceRegion& region, std::byte* to, const std::byte* from,
                   std::size_t bytes) {
    if (region.copy == nullptr) {
      std::memcpy(to, from, bytes);
    } else if (!region.copy(region.device, to, from, bytes)) {
      throw std::runtime_error("the network in memory cannot copy memory of a GPU");
    }
  }

  void read(Flight& flight) {
    if (flight.bytes) return;
    std::size_t all = 0;
    for (const Piece& piece : flight.pieces) all += piece.bytes;
    flight.bytes.emplace(all);
    std::byte* to = flight.bytes->data();
    for (const Piece& piece : flight.pieces) {
      const DeviceRegion& region = memory(flight.source, piece.from);
      copy(region, to, region.base + piece.from_offset, piece.bytes);
      to += piece.bytes;
    }
  }

  bool try_read(Flight& flight) noexcept {
    try {
      read(flight);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  template <typename Queue>
  auto pick(Queue& queue) {
    const auto place =
        queue.begin() +
        (happens(adversity_.reorder) ? static_cast<std::ptrdiff_t>(dice_() % queue.size()) : 0);
    auto picked = std::move(*place);
    queue.erase(place);
    return picked;
  }

  std::optional<Event> next_event(int rank) {
    Rank& own = of(rank);
    const std::size_t kinds[] = {own.unsent.size(), own.on_the_way.size(), own.lost.size()};
    const std::size_t all = kinds[0] + kinds[1] + kinds[2];
    if (all == 0) return std::nullopt;
    const std::size_t which = dice_() % all;
    Event event;
    if (which < kinds[0]) {
      const auto flight = pick(own.unsent);
      read(*flight);  // After this event its memory may change.
      event = {Event::Kind::sent, flight->chunk.peer, 0, flight->chunk.context};
      if (toward(rank, event.peer).gone) return next_event(rank);
    } else if (which < kinds[0] + kinds[1]) {
      const auto flight = pick(own.on_the_way);
      read(*flight);
      const std::byte* from = flight->bytes->data();
      for (const Piece& piece : flight->pieces) {
        const DeviceRegion& region = memory(rank, piece.to);
        copy(region, region.base + piece.to_offset, from, piece.bytes);
        from += piece.bytes;
      }
      event = {Event::Kind::arrived, -1, flight->chunk.immediate, 0};
    } else {
      event = {Event::Kind::lost, pick(own.lost), 0, 0};
      if (std::exchange(toward(rank, event.peer).gone, true)) return next_event(rank);
    }
    return event;
  }

  const Adversity adversity_;
  Traits traits_;
  const std::string name_;
  std::mutex mutex_;
  std::mt19937_64 dice_;
  std::vector<Rank> ranks_;
};

class MemoryFabric::Port final : public Endpoint {
 public:
  Port(std::shared_ptr<Network> network, int rank) : network_(std::move(network)), rank_(rank) {}
  ~Port() override { network_->close(rank_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  const Traits& traits() const noexcept override { return network_->traits(); }
  Result<Region> add_region(std::byte* base, std::size_t bytes) override {
    DeviceRegion region;
    region.base = base;
    region.bytes = bytes;
    return network_->add_region(rank_, region);
  }
  Result<Region> add_device_region(const DeviceRegion& region) override {
    if (traits().device_memory) return network_->add_region(rank_, region);
    return Status(StatusCode::unavailable, "the network in memory takes no memory of GPUs");
  }
  Result<std::string> introduction() override { return network_->name(); }
  Status connect(int peer, std::string_view introduction) override {
    if (introduction == network_->name()) return {};
    return {StatusCode::mismatch,
            "transport: rank " + std::to_string(peer) +
                " is not on the network in memory of rank " + std::to_string(rank_) +
                ", which joins threads of one process, expected a network of libfabric"};
  }
  Posted put(const Chunk& chunk) override { return network_->put(rank_, chunk); }
  std::size_t poll(std::span<Event> events) override { return network_->poll(rank_, events); }
  void took(int peer, int chunks) override { network_->took(rank_, peer, chunks); }
  void abandon(int peer) override { network_->abandon(rank_, peer); }
  std::optional<std::uint64_t> mark(int /*peer*/) override { return 0; }
  bool is_out(int /*peer*/, std::uint64_t /*mark*/) const override { return true; }
  std::uint64_t bytes_put(int peer) const noexcept override {
    return network_->bytes_put(rank_, peer);
  }

 private:
  std::shared_ptr<Network> network_;
  int rank_;
};

MemoryFabric::MemoryFabric(int ranks, const Adversity& adversity)
    : network_(std::make_shared<Network>(ranks, adversity)) {}

MemoryFabric::~MemoryFabric() = default;

std::unique_ptr<Endpoint> MemoryFabric::endpoint(int rank) {
  return std::make_unique<Port>(network_, rank);
}

void MemoryFabric::cut_off(int rank, bool told) {
  network_->cut_off(rank, told);
}

}  // namespace sluice::transport
