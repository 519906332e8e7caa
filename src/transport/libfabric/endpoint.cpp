// SPDX-License-Identifier: MIT
#include "transport/libfabric/endpoint.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <rdma/fi_errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "base/system_error.hpp"

namespace sluice::transport {
namespace {

constexpr std::uint32_t kIntroductionVersion = 1;
constexpr int kRailsMax = 8;
constexpr std::size_t kBatch = 16;
constexpr std::size_t kPutBytesMax = std::size_t{1} << 30;
// A provider's own descriptor would wake us in time, but 1.17's `net` has one that is always ready.
constexpr std::chrono::nanoseconds kNap{100'000};
// The peer is told what was taken of it this many times a window.
constexpr std::uint64_t kTellsPerWindow = 4;

constexpr int kDeskMemory = 0;

int memory_of(Region region) noexcept {
  return region + 1;
}

}  // namespace

Result<std::unique_ptr<Endpoint>> open_libfabric(int rank, int ranks,
                                                 const LibfabricSettings& settings) {
  return LibfabricEndpoint::open(rank, ranks, settings);
}

LibfabricEndpoint::LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                                     base::Descriptor wake)
    : library_(library),
      rank_(rank),
      traits_(std::move(traits)),
      desk_(traits_.rails, ranks, traits_.window),
      wake_(std::move(wake)),
      peers_(static_cast<std::size_t>(ranks)) {}

Result<std::unique_ptr<Endpoint>> LibfabricEndpoint::open(int rank, int ranks,
                                                          const LibfabricSettings& settings) {
  if (settings.rails < 1 || settings.rails > kRailsMax || settings.window < 4) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("libfabric: expected 1 to {} rails and a window of 4 or more; seen {} "
                    "and {}",
                    kRailsMax, settings.rails, settings.window));
  }
  const Result<const Library*> library = Library::load();
  if (!library.ok()) return library.status();
  Result<Provider> provider = choose_provider(**library, settings);
  if (!provider.ok()) return provider.status();
  const fi_info& info = *provider->info;
  base::Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.open()) return base::system_status(errno, "cannot create an eventfd");

  Traits traits;
  traits.provider = info.fabric_attr->prov_name;
  traits.signals = provider->signals;
  traits.rails = settings.rails;
  traits.window = settings.window;
  traits.put_bytes_max = std::min({info.ep_attr->max_msg_size, kPutBytesMax});
  if (traits.signals == SignalMode::ordered) {
    traits.put_bytes_max = std::min(traits.put_bytes_max, info.ep_attr->max_order_waw_size);
  }
  std::unique_ptr<LibfabricEndpoint> endpoint(
      new LibfabricEndpoint(**library, rank, ranks, std::move(traits), std::move(wake)));
  const std::size_t arrivals =
      static_cast<std::size_t>(ranks) * static_cast<std::size_t>(settings.window);
  for (int i = 0; i < settings.rails; ++i) {
    Result<std::unique_ptr<Rail>> rail = Rail::open(**library, info, arrivals);
    if (!rail.ok()) return rail.status();
    const Result<int> desk = (*rail)->add_memory(endpoint->desk_.base(), endpoint->desk_.bytes());
    if (!desk.ok()) return desk.status();
    endpoint->rails_.push_back(std::move(*rail));
  }
  const std::size_t posts = info.tx_attr->size * static_cast<std::size_t>(settings.rails);
  for (std::size_t i = 0; i < posts; ++i) {
    endpoint->posts_.emplace_back();
    endpoint->free_posts_.push_back(&endpoint->posts_.back());
  }
  base::log_info("rank {}: libfabric {}.{}, provider {} on {}, signals '{}', {} rails", rank,
                 FI_MAJOR((*library)->version()), FI_MINOR((*library)->version()),
                 endpoint->traits_.provider, info.domain_attr->name,
                 to_string(endpoint->traits_.signals), settings.rails);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Result<Region> LibfabricEndpoint::add_region(std::byte* base, std::size_t bytes) {
  for (const auto& rail : rails_) {
    const Result<int> memory = rail->add_memory(base, bytes);
    if (!memory.ok()) return memory.status();
  }
  regions_.push_back(base);
  return static_cast<Region>(regions_.size()) - 1;
}

Result<std::string> LibfabricEndpoint::introduction() {
  base::ByteWriter writer;
  writer.put(kIntroductionVersion)
      .put_string(traits_.provider)
      .put(traits_.signals)
      .put(static_cast<std::uint32_t>(traits_.rails))
      .put(static_cast<std::uint32_t>(traits_.window))
      .put(static_cast<std::uint32_t>(regions_.size()));
  for (const auto& rail : rails_) {
    const Result<std::string> name = rail->name();
    if (!name.ok()) return name.status();
    writer.put_string(*name).put(rail->remote(kDeskMemory));
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      writer.put(rail->remote(memory_of(static_cast<Region>(i))));
    }
  }
  return writer.take();
}

Status LibfabricEndpoint::connect(int peer, std::string_view introduction) {
  base::ByteReader reader(introduction);
  const auto version = reader.get<std::uint32_t>();
  if (version != kIntroductionVersion) {
    return {StatusCode::mismatch,
            fmt::format("transport: rank {} introduces itself in version {}, rank {} in version {}",
                        rank_, kIntroductionVersion, peer, version)};
  }
  Traits theirs;
  theirs.provider = reader.get_string();
  theirs.signals = reader.get<SignalMode>();
  theirs.rails = static_cast<int>(reader.get<std::uint32_t>());
  theirs.window = static_cast<int>(reader.get<std::uint32_t>());
  const auto text = [](const Traits& traits) {
    return fmt::format("provider {}, signals '{}', {} rails, window {}", traits.provider,
                       to_string(traits.signals), traits.rails, traits.window);
  };
  if (text(theirs) != text(traits_)) {
    return {StatusCode::mismatch, fmt::format("transport: rank {} uses {}; rank {} uses {}", rank_,
                                              text(traits_), peer, text(theirs))};
  }
  const auto regions = reader.get<std::uint32_t>();
  std::vector<Path> paths;
  for (std::size_t i = 0; i < rails_.size() && reader.ok(); ++i) {
    const std::string name = reader.get_string();
    Path path;
    path.desk = reader.get<RemoteMemory>();
    for (std::uint32_t region = 0; region < regions && reader.ok(); ++region) {
      path.regions.push_back(reader.get<RemoteMemory>());
    }
    if (!reader.ok()) break;
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
  of(peer).paths = std::move(paths);
  return {};
}

Posted LibfabricEndpoint::put(const Chunk& chunk) {
  Peer& peer = of(chunk.peer);
  if (peer.gone) return Posted::gone;
  const std::uint64_t taken = desk_.load(desk_.taken_offset(chunk.peer));
  if (peer.posted - taken >= static_cast<std::uint64_t>(traits_.window)) return Posted::busy;
  const std::size_t rail_number = peer.next_path;
  Path& path = peer.paths[rail_number];
  if (!path.words.empty() || free_posts_.empty()) return Posted::busy;

  if (chunk.bytes == 0 && in_words()) {
    signal(chunk.peer, rail_number, chunk.immediate);
    ready_.push_back({Event::Kind::sent, chunk.peer, 0, chunk.context});
  } else {
    Post* const post = free_posts_.back();
    post->peer = chunk.peer;
    post->rail = static_cast<int>(rail_number);
    post->immediate = chunk.immediate;
    post->user = chunk.context;
    Rail::Write write;
    write.peer = path.address;
    write.context = &post->context;
    write.bytes = chunk.bytes;
    write.flags = in_words() ? 0 : FI_REMOTE_CQ_DATA;
    if (traits_.signals == SignalMode::serial) write.flags = FI_DELIVERY_COMPLETE;
    write.data = chunk.immediate;
    RemoteMemory to = path.desk;  // For no bytes any memory will do.
    write.memory = kDeskMemory;
    write.from = desk_.base();
    if (chunk.bytes > 0) {
      to = path.regions[static_cast<std::size_t>(chunk.to)];
      to.base += chunk.to_offset;
      write.memory = memory_of(chunk.from);
      write.from = regions_[static_cast<std::size_t>(chunk.from)] + chunk.from_offset;
    }
    write.to = to.base;
    write.key = to.key;
    const long error = rail(rail_number).write(write);
    if (error == -FI_EAGAIN) return Posted::busy;
    if (error != 0) {
      lose(chunk.peer);
      return Posted::gone;
    }
    free_posts_.pop_back();
    // Behind the chunk on the same endpoint, which keeps the order of writes.
    if (traits_.signals == SignalMode::ordered) signal(chunk.peer, rail_number, chunk.immediate);
  }
  ++peer.posted;
  peer.bytes += chunk.bytes;
  peer.next_path = (rail_number + 1) % peer.paths.size();
  return Posted::yes;
}

void LibfabricEndpoint::signal(int peer, std::size_t rail, std::uint32_t immediate) {
  Path& path = of(peer).paths[rail];
  const std::uint64_t number = ++path.signalled;
  path.words.push_back({Desk::signal(number, immediate),
                        desk_.signal_offset(static_cast<int>(rail), rank_, number)});
  flush(peer, rail);
}

void LibfabricEndpoint::flush(int peer, std::size_t rail_number) {
  Path& path = of(peer).paths[rail_number];
  while (!path.words.empty()) {
    const Word& word = path.words.front();
    const long error =
        rail(rail_number)
            .write_word(path.address, word.value, path.desk.base + word.offset, path.desk.key);
    if (error == -FI_EAGAIN) return;
    if (error != 0) return lose(peer);
    path.words.pop_front();
  }
}

void LibfabricEndpoint::tell_taken(int peer) {
  Peer& told = of(peer);
  const Path& path = told.paths.front();
  if (!path.words.empty()) return;
  // A word of its own, monotone: one that comes late tells less, never more.
  const long error = rail(0).write_word(path.address, told.taken,
                                        path.desk.base + desk_.taken_offset(rank_), path.desk.key);
  if (error == -FI_EAGAIN) return;
  if (error != 0) return lose(peer);
  told.told = told.taken;
}

void LibfabricEndpoint::took(int peer, int chunks) {
  of(peer).taken += static_cast<std::uint64_t>(chunks);
}

void LibfabricEndpoint::abandon(int peer) {
  Peer& abandoned = of(peer);
  abandoned.gone = true;
  for (Path& path : abandoned.paths) path.words.clear();
}

void LibfabricEndpoint::lose(int peer) {
  if (of(peer).gone) return;
  abandon(peer);
  ready_.push_back({Event::Kind::lost, peer, 0, 0});
}

std::size_t LibfabricEndpoint::poll(std::span<Event> events) {
  const std::uint64_t tell_after = static_cast<std::uint64_t>(traits_.window) / kTellsPerWindow;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const Peer& known = of(peer);
    if (known.gone || known.paths.empty()) continue;
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      if (!known.paths[i].words.empty()) flush(peer, i);
    }
    if (known.taken - known.told >= tell_after) tell_taken(peer);
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    count += poll_sent(i, events.subspan(count));
    count += poll_arrived(i, events.subspan(count));
    if (in_words()) count += poll_words(i, events.subspan(count));
  }
  for (; count < events.size() && !ready_.empty(); ready_.pop_front()) {
    events[count++] = ready_.front();
  }
  return count;
}

std::size_t LibfabricEndpoint::poll_sent(std::size_t rail_number, std::span<Event> events) {
  std::array<fi_cq_data_entry, kBatch> entries;
  const std::size_t wanted = std::min(events.size(), entries.size());
  if (wanted == 0) return 0;
  const ssize_t read = fi_cq_read(rail(rail_number).sent(), entries.data(), wanted);
  if (read == -FI_EAVAIL) take_error(rail(rail_number).sent());
  std::size_t count = 0;
  for (ssize_t i = 0; i < read; ++i) {
    auto* const post = static_cast<Post*>(entries[static_cast<std::size_t>(i)].op_context);
    if (post == nullptr) continue;
    if (!of(post->peer).gone) {
      // Delivered: now its signal may go.
      if (traits_.signals == SignalMode::serial) signal(post->peer, rail_number, post->immediate);
      events[count++] = {Event::Kind::sent, post->peer, 0, post->user};
    }
    release(post);
  }
  return count;
}

std::size_t LibfabricEndpoint::poll_arrived(std::size_t rail_number, std::span<Event> events) {
  std::array<fi_cq_data_entry, kBatch> entries;
  const std::size_t wanted = std::min(events.size(), entries.size());
  if (wanted == 0) return 0;
  // Where signals are words nothing is found here, but without a read the provider does not move.
  const ssize_t read = fi_cq_read(rail(rail_number).arrived(), entries.data(), wanted);
  if (read == -FI_EAVAIL) take_error(rail(rail_number).arrived());
  std::size_t count = 0;
  for (ssize_t i = 0; i < read; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<std::size_t>(i)];
    if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) continue;
    events[count++] = {Event::Kind::arrived, -1, static_cast<std::uint32_t>(entry.data), 0};
  }
  return count;
}

std::size_t LibfabricEndpoint::poll_words(std::size_t rail_number, std::span<Event> events) {
  std::size_t count = 0;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (of(peer).gone || of(peer).paths.empty()) continue;
    Path& path = of(peer).paths[rail_number];
    while (count < events.size()) {
      const std::uint64_t number = path.heard + 1;
      const std::uint64_t word =
          desk_.load(desk_.signal_offset(static_cast<int>(rail_number), peer, number));
      if (!Desk::is_number(word, number)) break;
      path.heard = number;
      events[count++] = {Event::Kind::arrived, -1, static_cast<std::uint32_t>(word), 0};
    }
  }
  return count;
}

void LibfabricEndpoint::take_error(fid_cq* queue) {
  fi_cq_err_entry error{};
  if (fi_cq_readerr(queue, &error, 0) <= 0) return;
  auto* const post = static_cast<Post*>(error.op_context);
  base::log_debug("rank {}: libfabric: {} ({})", rank_, library_.strerror(error.err), error.err);
  if (post == nullptr) return;
  lose(post->peer);
  release(post);
}

void LibfabricEndpoint::idle(std::chrono::nanoseconds at_most) {
  const std::chrono::nanoseconds nap = std::min(at_most, kNap);
  timespec time{};
  time.tv_nsec = static_cast<long>(std::max<std::int64_t>(nap.count(), 0));
  pollfd entry{wake_.number(), POLLIN, 0};
  if (::ppoll(&entry, 1, &time, nullptr) > 0) {
    std::uint64_t wakes = 0;
    // Nonblocking, and of no interest: whoever else read it has woken us as well.
    [[maybe_unused]] const ssize_t read = ::read(wake_.number(), &wakes, sizeof(wakes));
  }
}

void LibfabricEndpoint::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(wake_.number(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

std::uint64_t LibfabricEndpoint::bytes_put(int peer) const noexcept {
  return peers_[static_cast<std::size_t>(peer)].bytes;
}

}  // namespace sluice::transport
