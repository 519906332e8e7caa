// SPDX-License-Identifier: MIT
#include "transport/bundling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "transport/message.hpp"

namespace sluice::transport {
namespace {

/// Its own, before the caller's.
constexpr Region kBundleRegion = 0;
// Slots of immediates that no caller uses: kTellSlot of a source, or one of its places.
constexpr int kSlotsOfSource = Signal::kOwnSlotsOfSource;
constexpr int kTellSlot = kSlotsOfSource - 1;
static_assert(BundlingEndpoint::kBundles < kTellSlot);
// Contexts of its own chunks.
constexpr std::uint64_t kOwnContext = 0xb0d1e5'0000'0000;
constexpr std::uint64_t kOwnContextMask = 0xffffff'0000'0000;
constexpr std::uint64_t kNoPlace = 0xff;

/// How much fits beside each other without a place that is not aligned.
constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

std::uint32_t immediate_of(int source, int slot, std::uint32_t count = 0) {
  return Signal::numbered(Signal::kOwnSlots + source * kSlotsOfSource + slot, count).encode();
}

std::uint64_t context_of(std::uint64_t place) {
  return kOwnContext | place;
}

}  // namespace

struct alignas(16) BundlingEndpoint::Header {
  std::uint32_t number;   // Of the bundle, from 0.
  std::uint32_t emptied;  // Bundles of the receiver.
  std::uint32_t entries;
  std::uint32_t unused;
};

struct alignas(16) BundlingEndpoint::Entry {
  std::uint64_t to_offset;
  std::uint32_t bytes;
  std::uint32_t immediate;
  std::uint32_t to;
  std::uint32_t unused[3];
};

Result<std::unique_ptr<Endpoint>> BundlingEndpoint::over(std::unique_ptr<Endpoint> below, int rank,
                                                         int ranks,
                                                         const BundlingSettings& settings) {
  if (ranks > Signal::kSourcesMax) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("between nodes: {} ranks, expected at most {}", ranks, Signal::kSourcesMax));
  }
  std::unique_ptr<BundlingEndpoint> endpoint(
      new BundlingEndpoint(std::move(below), rank, ranks, settings));
  const Result<Region> region =
      endpoint->below_->add_region(endpoint->memory_.get(), endpoint->departure_place(ranks, 0));
  if (!region) return region.status();
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

BundlingEndpoint::BundlingEndpoint(std::unique_ptr<Endpoint> below, int rank, int ranks,
                                   const BundlingSettings& settings)
    : below_(std::move(below)),
      traits_(below_->traits()),
      rank_(rank),
      ranks_(ranks),
      settings_(below_->traits().put_bytes_max < kBundleBytes
                    ? BundlingSettings{.chunk_bytes_max = 0}
                    : settings),
      peers_(static_cast<std::size_t>(ranks)),
      filling_(ranks),
      telling_(ranks) {
  traits_.pieces_max = 1;  // The others are its own.
  // Not touched before it is used.
  memory_.reset(new std::byte[departure_place(ranks, 0)]);
}

std::size_t BundlingEndpoint::arrival_place(int source, int place) noexcept {
  return static_cast<std::size_t>(source * kBundles + place) * kBundleBytes;
}

std::size_t BundlingEndpoint::departure_place(int target, int place) const noexcept {
  return arrival_place(ranks_ + target, place);
}

Result<Region> BundlingEndpoint::add_region(std::byte* base, std::size_t bytes) {
  const Result<Region> region = below_->add_region(base, bytes);
  if (!region) return region.status();
  regions_.push_back({base, bytes});
  return *region - 1;
}

Result<Region> BundlingEndpoint::add_device_region(const DeviceRegion& device) {
  const Result<Region> region = below_->add_device_region(device);
  if (!region) return region.status();
  regions_.push_back({nullptr, device.bytes});
  return *region - 1;
}

Result<std::string> BundlingEndpoint::introduction() {
  Result<std::string> below = below_->introduction();
  if (!below) return below;
  Introduction own;
  own.below = std::move(below).value();
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].base == nullptr) own.device_regions |= std::uint64_t{1} << i;
  }
  return own.encode();
}

std::string BundlingEndpoint::Introduction::encode() const {
  return base::ByteWriter().put(device_regions).put_string(below).take();
}

bool BundlingEndpoint::Introduction::decode(std::string_view text, Introduction& out) {
  base::ByteReader reader(text);
  out.device_regions = reader.get<std::uint64_t>();
  out.below = reader.get_string();
  return reader.ok() && reader.at_end();
}

Status BundlingEndpoint::connect(int peer, std::string_view introduction) {
  Introduction theirs;
  if (!Introduction::decode(introduction, theirs)) {
    return {StatusCode::mismatch,
            fmt::format("transport: the introduction of rank {} has {} bytes and is cut short, or "
                        "too long",
                        peer, introduction.size())};
  }
  of(peer).device_regions = theirs.device_regions;
  return below_->connect(peer, theirs.below);
}

Posted BundlingEndpoint::put_alone(Chunk chunk) {
  if (chunk.bytes > 0) {
    ++chunk.from;
    ++chunk.to;
  }
  const Posted posted = below_->put(chunk);
  if (posted == Posted::gone) lose(chunk.peer);
  if (posted == Posted::yes) of(chunk.peer).bytes += chunk.bytes;
  return posted;
}

// The processor, which would copy it, may not touch a GPU's memory.
bool BundlingEndpoint::of_hosts(const Chunk& chunk) noexcept {
  return chunk.bytes == 0 || (regions_[static_cast<std::size_t>(chunk.from)].base != nullptr &&
                              (of(chunk.peer).device_regions >> chunk.to & 1U) == 0);
}

bool BundlingEndpoint::fits_bundle(const Chunk& chunk) noexcept {
  return settings_.chunk_bytes_max != 0 && chunk.bytes <= settings_.chunk_bytes_max &&
         sizeof(Header) + sizeof(Entry) + padded(chunk.bytes) <= kBundleBytes && of_hosts(chunk);
}

// That it can take along.
bool BundlingEndpoint::finds_bundle(const Chunk& chunk) noexcept {
  const Peer& peer = of(chunk.peer);
  const Traits& below = below_->traits();
  return peer.filled != 0 && peer.filled + sizeof(Entry) <= kBundleBytes &&
         below.pieces_max > 1 + peer.held.size() &&
         kBundleBytes + peer.held_bytes + chunk.bytes <= below.put_bytes_max && of_hosts(chunk);
}

// For the next one, with which it would go.
bool BundlingEndpoint::may_wait(const Chunk& chunk) noexcept {
  return chunk.more && chunk.bytes <= settings_.held_bytes_max &&
         below_->traits().pieces_max > 2 + of(chunk.peer).held.size();
}

// If they cannot go now, nothing has changed.
Posted BundlingEndpoint::put_along(const Chunk& chunk) {
  Peer& peer = of(chunk.peer);
  const std::size_t place = peer.put % kBundles;
  const Entry entry{0, 0, chunk.immediate, 0, {}};
  std::memcpy(memory_.get() + departure_place(chunk.peer, static_cast<int>(place)) + peer.filled,
              &entry, sizeof(entry));
  const bool waits = may_wait(chunk);
  peer.filled += sizeof(entry);
  ++peer.entries;
  peer.held.push_back(
      {chunk.from + 1, chunk.from_offset, chunk.to + 1, chunk.to_offset, chunk.bytes});
  peer.held_contexts.push_back(chunk.context);
  peer.held_bytes += chunk.bytes;
  if (waits) peer.only_immediates = false;
  const Posted posted = waits ? Posted::yes : flush(chunk.peer);
  if (posted == Posted::busy) {
    peer.filled -= sizeof(entry);
    --peer.entries;
    peer.held.pop_back();
    peer.held_contexts.pop_back();
    peer.held_bytes -= chunk.bytes;
  }
  if (posted == Posted::yes) peer.bytes += chunk.bytes;
  return posted;
}

Posted BundlingEndpoint::put(const Chunk& chunk) {
  if (of(chunk.peer).gone) return Posted::gone;
  const bool fits = fits_bundle(chunk);
  // What is put next may be longer, and take both along.
  const bool copied = fits && (chunk.more || chunk.bytes <= settings_.copied_bytes_max);
  if (!copied && finds_bundle(chunk)) return put_along(chunk);
  if (!fits) {
    // What has waited for it does so no longer.
    if (!of(chunk.peer).held.empty() && flush(chunk.peer) == Posted::gone) return Posted::gone;
    return put_alone(chunk);
  }
  const std::size_t needed = sizeof(Entry) + padded(chunk.bytes);
  std::byte* const at = room(chunk.peer, needed);
  Peer& peer = of(chunk.peer);
  if (at == nullptr) return peer.gone ? Posted::gone : Posted::busy;
  const Entry entry{
      chunk.to_offset, chunk.bytes, chunk.immediate, static_cast<std::uint32_t>(chunk.to), {}};
  std::memcpy(at, &entry, sizeof(entry));
  if (chunk.bytes > 0) {
    const std::byte* const from = regions_[static_cast<std::size_t>(chunk.from)].base;
    std::memcpy(at + sizeof(entry), from + chunk.from_offset, chunk.bytes);
    peer.only_immediates = false;
  }
  peer.bytes += chunk.bytes;
  ready_.push_back({Event::Kind::sent, chunk.peer, 0, chunk.context});
  return Posted::yes;
}

std::byte* BundlingEndpoint::room(int target, std::size_t bytes) {
  Peer& peer = of(target);
  if (peer.filled + bytes > kBundleBytes && flush(target) != Posted::yes) return nullptr;
  const auto place = static_cast<int>(peer.put % kBundles);
  if (peer.filled == 0) {
    if (peer.put - peer.emptied_there == kBundles || peer.unsent[static_cast<std::size_t>(place)]) {
      return nullptr;
    }
    peer.filled = sizeof(Header);
    filling_.insert(target);
    peer.entries = 0;
    peer.since_ns = base::now_ns();
    peer.only_immediates = true;
  }
  std::byte* const at = memory_.get() + departure_place(target, place) + peer.filled;
  peer.filled += bytes;
  ++peer.entries;
  return at;
}

/// Whether nothing waits any more.
Posted BundlingEndpoint::flush(int target) {
  Peer& peer = of(target);
  if (peer.filled == 0) return Posted::yes;
  const auto place = static_cast<int>(peer.put % kBundles);
  Chunk bundle;
  bundle.peer = target;
  bundle.from = bundle.to = kBundleRegion;
  bundle.from_offset = departure_place(target, place);
  bundle.to_offset = arrival_place(rank_, place);
  bundle.bytes = static_cast<std::uint32_t>(peer.filled);
  bundle.immediate = immediate_of(rank_, place);
  bundle.context = context_of(static_cast<std::uint64_t>(place));
  bundle.with = peer.held;
  const Header header{peer.put, peer.emptied, peer.entries, 0};
  std::memcpy(memory_.get() + bundle.from_offset, &header, sizeof(header));
  const Posted posted = below_->put(bundle);
  if (posted == Posted::gone) lose(target);
  if (posted != Posted::yes) return posted;
  peer.filled = 0;
  filling_.erase(target);
  peer.unsent[static_cast<std::size_t>(place)] = true;
  peer.along[static_cast<std::size_t>(place)].swap(peer.held_contexts);  // That one's are none.
  peer.held.clear();
  peer.held_bytes = 0;
  ++peer.put;
  peer.told = peer.emptied;
  return posted;
}

std::optional<std::uint64_t> BundlingEndpoint::mark(int peer) {
  if (flush(peer) == Posted::busy) return std::nullopt;
  return below_->mark(peer);
}

void BundlingEndpoint::flush_all() {
  const std::int64_t now_ns = base::now_ns();
  filling_.for_each([&](int peer) {
    const Peer& target = of(peer);
    const bool company =
        target.only_immediates && now_ns - target.since_ns < settings_.patience.count();
    if (!company) (void)flush(peer);
  });
  telling_.for_each([&](int peer) { tell_emptied(peer); });
}

// In a chunk of its own, where no bundle has done it.
void BundlingEndpoint::tell_emptied(int source) {
  Peer& peer = of(source);
  if (peer.gone || peer.emptied - peer.told < kBundles / 2) return telling_.erase(source);
  Chunk chunk;
  chunk.peer = source;
  chunk.immediate = immediate_of(rank_, kTellSlot, peer.emptied);
  chunk.context = context_of(kNoPlace);
  const Posted posted = below_->put(chunk);
  if (posted == Posted::yes) peer.told = peer.emptied;
  if (posted == Posted::gone) lose(source);
}

std::size_t BundlingEndpoint::poll(std::span<Event> events) {
  flush_all();
  if (ready_.size() < events.size()) {
    const std::size_t count = below_->poll(events.subspan(ready_.size()));
    // What was there before goes first.
    const std::size_t before = ready_.size();
    for (std::size_t i = 0; i < count; ++i) take(events[before + i]);
  }
  std::size_t count = 0;
  for (; count < events.size() && !ready_.empty(); ready_.pop_front()) {
    events[count++] = ready_.front();
  }
  return count;
}

void BundlingEndpoint::take(const Event& event) {
  switch (event.kind) {
    case Event::Kind::lost: lose(event.peer); break;
    case Event::Kind::sent:
      if ((event.context & kOwnContextMask) == kOwnContext) {
        const std::uint64_t place = event.context & kNoPlace;
        if (place != kNoPlace) took_away(event.peer, place);
        return;
      }
      break;
    case Event::Kind::arrived: {
      const Signal signal = Signal::decode(event.immediate);
      if (signal.slot < Signal::kOwnSlots) break;
      const int source = (signal.slot - Signal::kOwnSlots) / kSlotsOfSource;
      const int slot = (signal.slot - Signal::kOwnSlots) % kSlotsOfSource;
      if (source >= ranks_) return;
      below_->took(source, 1);
      if (slot == kTellSlot) {
        take_count(source, signal.number());
      } else if (slot < kBundles) {
        empty(source, slot);
      }
      return;
    }
  }
  ready_.push_back(event);
}

// What was in this place has left.
void BundlingEndpoint::took_away(int target, std::size_t place) {
  Peer& peer = of(target);
  peer.unsent[place] = false;
  for (const std::uint64_t context : peer.along[place]) {
    ready_.push_back({Event::Kind::sent, target, 0, context});
  }
  peer.along[place].clear();
}

void BundlingEndpoint::empty(int source, int place) {
  Peer& peer = of(source);
  const std::byte* const bundle = memory_.get() + arrival_place(source, place);
  Header header;
  std::memcpy(&header, bundle, sizeof(header));
  std::size_t at = sizeof(Header);
  bool sound = true;
  for (std::uint32_t i = 0; sound && i < header.entries; ++i) {
    Entry entry;
    sound = at + sizeof(entry) <= kBundleBytes;
    if (!sound) break;
    std::memcpy(&entry, bundle + at, sizeof(entry));
    at += sizeof(entry);
    if (entry.bytes > 0) {
      const Memory to = entry.to < regions_.size() ? regions_[entry.to] : Memory{};
      sound = to.base != nullptr && entry.bytes <= kBundleBytes - at && entry.bytes <= to.bytes &&
              entry.to_offset <= to.bytes - entry.bytes;
      if (!sound) break;
      std::memcpy(to.base + entry.to_offset, bundle + at, entry.bytes);
      at += padded(entry.bytes);
    }
    ready_.push_back({Event::Kind::arrived, -1, entry.immediate, 0});
    ++peer.owed;
  }
  if (!sound) {
    base::log_error("rank {}: what rank {} sent makes no sense: it is given up", rank_, source);
    if (peer.gone) return;
    lose(source);
    below_->abandon(source);
    ready_.push_back({Event::Kind::lost, source, 0, 0});
    return;
  }
  take_count(source, header.emptied);
  peer.emptied_early[header.number % kBundles] = true;
  for (; peer.emptied_early[peer.emptied % kBundles]; ++peer.emptied) {
    peer.emptied_early[peer.emptied % kBundles] = false;
  }
  if (peer.emptied - peer.told >= kBundles / 2) telling_.insert(source);
}

/// Of bundles that the peer has emptied, modulo Signal::kNumbers or not.
void BundlingEndpoint::take_count(int source, std::uint32_t count) noexcept {
  Peer& peer = of(source);
  const std::uint32_t ahead = (count - peer.emptied_there) % Signal::kNumbers;
  if (ahead <= peer.put - peer.emptied_there) peer.emptied_there += ahead;
}

void BundlingEndpoint::took(int peer, int chunks) {
  // Those of bundles are not known below.
  const auto own =
      static_cast<int>(std::min<std::uint64_t>(of(peer).owed, static_cast<std::uint64_t>(chunks)));
  of(peer).owed -= static_cast<std::uint64_t>(own);
  if (chunks > own) below_->took(peer, chunks - own);
}

// No event tells of its chunks any more.
void BundlingEndpoint::lose(int peer) {
  of(peer).gone = true;
  of(peer).filled = 0;
  filling_.erase(peer);
  of(peer).held.clear();
  of(peer).held_contexts.clear();
  of(peer).held_bytes = 0;
  std::erase_if(ready_, [&](const Event& event) {
    return event.kind == Event::Kind::sent && event.peer == peer;
  });
}

void BundlingEndpoint::abandon(int peer) {
  lose(peer);
  below_->abandon(peer);
}

}  // namespace sluice::transport
