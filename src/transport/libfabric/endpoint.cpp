// SPDX-License-Identifier: MIT
#include "transport/libfabric/endpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/log.hpp"

namespace sluice::transport {
namespace {

constexpr int kRailsMax = 8;
// Of a rail at which nobody writes, or nothing but memory.
constexpr std::size_t kNoArrivals = 16;

// Those of which it is known that an immediate comes after all pieces, as they follow each other on a connection.
bool takes_pieces(const fi_info& info) noexcept {
  const std::string_view name = info.fabric_attr->prov_name;
  return name == "net" || name == "tcp";
}

bool receives_apart(const fi_info& info, const LibfabricSettings& settings) noexcept {
  if ((info.caps & FI_HMEM) != 0) return false;
  return settings.receiver.value_or(moved_by_processor(info.fabric_attr->prov_name) &&
                                    settings.processors >= LibfabricSettings::kReceiverProcessors);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> open_libfabric(int rank, int ranks,
                                                 const LibfabricSettings& settings) {
  const Result<const Library*> library = Library::load();
  if (!library.ok()) return library.status();
  return LibfabricEndpoint::open(**library, rank, ranks, settings);
}

LibfabricEndpoint::LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                                     std::uint64_t tell_flags, std::string loopback_network,
                                     std::uint32_t address_format, bool apart, bool alone)
    : library_(library),
      rank_(rank),
      traits_(std::move(traits)),
      loopback_network_(std::move(loopback_network)),
      address_format_(address_format),
      apart_(apart),
      alone_(alone),
      desk_(traits_.rails, ranks, in_words() ? traits_.window : 0),
      peers_(static_cast<std::size_t>(ranks)),
      outlet_(library, rank, ranks, traits_, tell_flags, desk_),
      inlet_(library, rank, ranks, desk_, in_words(), apart) {}

Result<std::unique_ptr<Endpoint>> LibfabricEndpoint::open(const Library& library, int rank,
                                                          int ranks,
                                                          const LibfabricSettings& settings) {
  if (settings.rails < 1 || settings.rails > kRailsMax ||
      settings.window < LibfabricSettings::kWindowMin) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("libfabric: expected 1 to {} rails and a window of 4 or more; seen {} "
                    "and {}",
                    kRailsMax, settings.rails, settings.window));
  }
  const Result<Provider> provider = choose_provider(library, settings);
  if (!provider.ok()) return provider.status();
  if (settings.device_memory) {
    const Result<Provider> direct = with_device_memory(library, settings, *provider);
    Result<std::unique_ptr<Endpoint>> endpoint =
        direct.ok() ? open_on(library, *direct, rank, ranks, settings)
                    : Result<std::unique_ptr<Endpoint>>(direct.status());
    if (endpoint.ok()) return endpoint;
    base::log_info("rank {}: not with memory of GPUs: {}", rank, endpoint.status().message());
  }
  Result<std::unique_ptr<Endpoint>> endpoint = open_on(library, *provider, rank, ranks, settings);
  if (endpoint.ok() || !settings.providers.empty()) return endpoint;
  // Not another one by itself: it might do on all other ranks.
  return Status(endpoint.status().code(),
                fmt::format("{}; provider {} was the first that is there, and SLUICE_NETWORK names "
                            "others",
                            endpoint.status().message(), provider->name));
}

Result<std::unique_ptr<Endpoint>> LibfabricEndpoint::open_on(const Library& library,
                                                             const Provider& provider, int rank,
                                                             int ranks,
                                                             const LibfabricSettings& settings) {
  const fi_info& info = provider.info();
  Traits traits;
  traits.provider = provider.name;
  traits.signals = provider.signals;
  traits.device_memory = (info.caps & FI_HMEM) != 0;
  traits.rails = settings.rails;
  traits.window = settings.window;
  traits.put_bytes_max = provider.put_bytes_max();
  if (traits.signals == SignalMode::immediate && takes_pieces(info)) {
    traits.pieces_max = Rail::pieces_max(info);
  }
  std::unique_ptr<LibfabricEndpoint> endpoint(new LibfabricEndpoint(
      library, rank, ranks, std::move(traits), provider.in_order() ? 0 : FI_DELIVERY_COMPLETE,
      settings.loopback_network, info.addr_format, receives_apart(info, settings),
      settings.processors >= LibfabricSettings::kReceiverProcessors));
  if (Status status = endpoint->open_rails(provider); !status.ok()) return status;
  std::vector<std::string_view> nics;
  for (const Info& rail : provider.rails) nics.emplace_back(rail->domain_attr->name);
  base::log_info("rank {}: libfabric {}.{}, provider {} on {}, signals '{}', {} rails{}", rank,
                 FI_MAJOR(library.version()), FI_MINOR(library.version()),
                 endpoint->traits_.provider, fmt::join(nics, ", "),
                 to_string(endpoint->traits_.signals), settings.rails,
                 endpoint->apart_ ? ", a thread that receives" : "");
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Status LibfabricEndpoint::open_rails(const Provider& provider) {
  for (std::size_t i = 0; i < (apart_ ? 2 : 1) * rails(); ++i) {
    const bool out_only = apart_ && i < rails();
    Result<std::unique_ptr<Rail>> rail =
        Rail::open(library_, *provider.rails[i % rails()],
                   out_only || in_words() ? kNoArrivals : arrivals_max());
    if (!rail.ok()) return rail.status();
    const Result<int> desk = (*rail)->add_memory(desk_.base(), desk_.bytes());
    if (!desk.ok()) return desk.status();
    rails_.push_back(std::move(*rail));
  }
  for (std::size_t i = 0; i < rails(); ++i) {
    outlet_.add(rail(i));
    inlet_.add(rail_in(i));
  }
  return {};
}

// Of what is used from now on by the receiver's thread alone, nothing is touched by others.
void LibfabricEndpoint::begin() {
  if (begun_) return;
  begun_ = true;
  if (!apart_) return;
  try {
    receiver_ = std::make_unique<Receiver>(
        arrivals_max(), alone_,
        [this](std::span<std::uint32_t> immediates) { return inlet_.poll(immediates); });
  } catch (const std::system_error& error) {
    base::log_warn("rank {}: no thread to receive ({}): its progress thread does it", rank_,
                   error.what());
  }
}

Status LibfabricEndpoint::not_begun() const {
  if (!begun_) return {};
  return {StatusCode::failed_precondition,
          "transport: memory is added, and asked for, before the first put or poll"};
}

template <typename Add>
Result<Region> LibfabricEndpoint::add_to_rails(std::byte* base, const Add& add) {
  if (Status status = not_begun(); !status.ok()) return status;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Result<int> memory = add(rail(i));
    if (memory.ok()) continue;
    while (i-- > 0) rail(i).drop_last_memory();
    return memory.status();
  }
  outlet_.add_memory(base);
  return static_cast<Region>(regions_++);
}

Result<Region> LibfabricEndpoint::add_region(std::byte* base, std::size_t bytes) {
  return add_to_rails(base, [&](Rail& rail) { return rail.add_memory(base, bytes); });
}

Result<Region> LibfabricEndpoint::add_device_region(const DeviceRegion& region) {
  if (!traits_.device_memory) {
    return Status(StatusCode::unavailable,
                  fmt::format("provider {} does not reach GPU memory", traits_.provider));
  }
  const char* how = "";
  const Result<Region> added =
      add_to_rails(region.base, [&](Rail& rail) { return rail.add_device_memory(region, how); });
  if (added.ok()) {
    base::log_info("rank {}: provider {} reaches {} bytes of GPU {} by {}", rank_, traits_.provider,
                   region.bytes, region.device, how);
  }
  return added;
}

Result<std::string> LibfabricEndpoint::introduction() {
  if (Status status = not_begun(); !status.ok()) return status;
  base::ByteWriter writer;
  writer.put(library_.version())
      .put_string(loopback_network_)
      .put_string(traits_.provider)
      .put(traits_.signals)
      .put(static_cast<std::uint32_t>(traits_.rails))
      .put(static_cast<std::uint32_t>(traits_.window))
      .put(static_cast<std::uint32_t>(regions_));
  for (std::size_t number = 0; number < rails(); ++number) {
    const Rail& rail = rail_in(number);
    const Result<std::string> name = rail.name();
    if (!name.ok()) return name.status();
    writer.put_string(*name).put(rail.remote(Outlet::kDeskMemory));
    for (std::size_t i = 0; i < regions_; ++i) {
      writer.put(rail.remote(Outlet::memory_of(static_cast<Region>(i))));
    }
  }
  return writer.take();
}

Status LibfabricEndpoint::connect(int peer, std::string_view introduction) {
  if (introduction.starts_with("memory ")) {  // A MemoryFabric's.
    return {StatusCode::mismatch, fmt::format("transport: rank {} uses provider {}, rank {} the "
                                              "network in memory of its process",
                                              rank_, traits_.provider, peer)};
  }
  base::ByteReader reader(introduction);
  const auto version = reader.get<std::uint32_t>();
  const std::string loopback_network = reader.get_string();
  Traits theirs;
  theirs.provider = reader.get_string();
  theirs.signals = reader.get<SignalMode>();
  theirs.rails = static_cast<int>(reader.get<std::uint32_t>());
  theirs.window = static_cast<int>(reader.get<std::uint32_t>());
  const auto text = [](const Traits& traits, std::uint32_t of) {
    return fmt::format("provider {}, signals '{}', {} rails, window {} (libfabric {}.{})",
                       traits.provider, to_string(traits.signals), traits.rails, traits.window,
                       FI_MAJOR(of), FI_MINOR(of));
  };
  // Providers of different releases may understand each other, or not.
  if (text(theirs, version) != text(traits_, version)) {
    return {StatusCode::mismatch,
            fmt::format("transport: rank {} uses {}; rank {} uses {}", rank_,
                        text(traits_, library_.version()), peer, text(theirs, version))};
  }
  if (version != library_.version() && !std::exchange(versions_differ_, true)) {
    base::log_warn("rank {} has libfabric {}.{}, rank {} has {}.{}", rank_,
                   FI_MAJOR(library_.version()), FI_MINOR(library_.version()), peer,
                   FI_MAJOR(version), FI_MINOR(version));
  }
  const bool elsewhere = !loopback_network.empty() && !loopback_network_.empty() &&
                         loopback_network != loopback_network_;
  const auto regions = reader.get<std::uint32_t>();
  std::vector<Outlet::Path> paths;
  for (std::size_t i = 0; i < rails() && reader.ok(); ++i) {
    const std::string name = reader.get_string();
    Outlet::Path path;
    path.desk = reader.get<RemoteMemory>();
    for (std::uint32_t region = 0; region < regions && reader.ok(); ++region) {
      path.regions.push_back(reader.get<RemoteMemory>());
    }
    if (!reader.ok()) break;
    const Result<std::string> own = rail(i).name();
    if (!own.ok()) return own.status();
    if (name.size() != own->size()) {
      return {
          StatusCode::mismatch,
          fmt::format("transport: rank {} has an address of {} bytes, rank {} one of {} (IPv4 and "
                      "IPv6?)",
                      rank_, own->size(), peer, name.size())};
    }
    if (elsewhere && is_loopback(address_format_, name)) {
      return {StatusCode::unavailable,
              fmt::format("transport: rank {} is at a loopback address, which rank {}, on another "
                          "machine or in another network namespace, cannot reach; "
                          "SLUICE_NETWORK_ADDRESS there says at which one it can be reached",
                          peer, rank_)};
    }
    const Result<fi_addr_t> address = rail(i).insert(name);
    if (!address.ok()) return address.status();
    path.address = *address;
    paths.push_back(std::move(path));
  }
  if (!reader.ok() || !reader.at_end()) {
    return {StatusCode::mismatch,
            fmt::format("transport: the introduction of rank {} has {} bytes and is cut short, or "
                        "too long",
                        peer, introduction.size())};
  }
  outlet_.connect(peer, std::move(paths));
  return {};
}

Posted LibfabricEndpoint::put(const Chunk& chunk) {
  begin();
  if (receiver_) receiver_->stir();  // Where something goes, something comes.
  Peer& peer = of(chunk.peer);
  if (peer.gone) return Posted::gone;
  const std::uint64_t under_way = peer.posted - inlet_.taken(chunk.peer);
  if (under_way >= static_cast<std::uint64_t>(traits_.window)) return Posted::busy;
  if (const Posted posted = outlet_.put(chunk); posted != Posted::yes) return posted;
  ++peer.posted;
  peer.bytes += chunk.bytes;
  for (const Piece& piece : chunk.with) peer.bytes += piece.bytes;
  return Posted::yes;
}

void LibfabricEndpoint::abandon(int peer) {
  of(peer).gone = true;
  outlet_.abandon(peer);
}

std::size_t LibfabricEndpoint::poll(std::span<Event> events) {
  begin();
  const std::size_t count = outlet_.poll(events);
  for (const Event& event : events.first(count)) {
    if (event.kind == Event::Kind::lost) of(event.peer).gone = true;
  }
  return count + poll_arrived(events.subspan(count));
}

std::size_t LibfabricEndpoint::poll_arrived(std::span<Event> events) {
  std::array<std::uint32_t, 64> immediates;
  const auto found = std::span(immediates).first(std::min(events.size(), immediates.size()));
  const std::size_t count = receiver_ ? receiver_->take(found) : inlet_.poll(found);
  for (std::size_t i = 0; i < count; ++i) {
    events[i] = {Event::Kind::arrived, -1, immediates[i], 0};
  }
  return count;
}

std::uint64_t LibfabricEndpoint::bytes_put(int peer) const noexcept {
  return peers_[static_cast<std::size_t>(peer)].bytes;
}

}  // namespace sluice::transport
