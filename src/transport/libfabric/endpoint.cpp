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
constexpr int kErrorsAtOnce = 1024;
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
  const Result<const Library*> library = Library::load();
  if (!library.ok()) return library.status();
  return LibfabricEndpoint::open(**library, rank, ranks, settings);
}

LibfabricEndpoint::LibfabricEndpoint(const Library& library, int rank, int ranks, Traits traits,
                                     std::uint64_t tell_flags, base::Descriptor wake)
    : library_(library),
      rank_(rank),
      traits_(std::move(traits)),
      tell_flags_(tell_flags),
      desk_(traits_.rails, ranks, in_words() ? traits_.window : 0),
      wake_(std::move(wake)),
      peers_(static_cast<std::size_t>(ranks)) {}

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
  return open_on(library, *provider, rank, ranks, settings);
}

Result<std::unique_ptr<Endpoint>> LibfabricEndpoint::open_on(const Library& library,
                                                             const Provider& provider, int rank,
                                                             int ranks,
                                                             const LibfabricSettings& settings) {
  const fi_info& info = *provider.info;
  base::Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.open()) return base::system_status(errno, "cannot create an eventfd");

  Traits traits;
  traits.provider = info.fabric_attr->prov_name;
  traits.signals = provider.signals;
  traits.device_memory = (info.caps & FI_HMEM) != 0;
  traits.rails = settings.rails;
  traits.window = settings.window;
  traits.put_bytes_max = std::min({info.ep_attr->max_msg_size, kPutBytesMax});
  if (traits.signals == SignalMode::ordered) {
    // In order are those below it.
    traits.put_bytes_max = std::min(traits.put_bytes_max, info.ep_attr->max_order_waw_size - 1);
  }
  std::unique_ptr<LibfabricEndpoint> endpoint(
      new LibfabricEndpoint(library, rank, ranks, std::move(traits),
                            in_order(info) ? 0 : FI_DELIVERY_COMPLETE, std::move(wake)));
  // What all peers may have on their way, tells not counted: they raise no entry here.
  const std::size_t arrivals =
      static_cast<std::size_t>(ranks) * static_cast<std::size_t>(settings.window);
  for (int i = 0; i < settings.rails; ++i) {
    Result<std::unique_ptr<Rail>> rail = Rail::open(library, info, arrivals);
    if (!rail.ok()) return rail.status();
    const Result<int> desk = (*rail)->add_memory(endpoint->desk_.base(), endpoint->desk_.bytes());
    if (!desk.ok()) return desk.status();
    endpoint->rails_.push_back(std::move(*rail));
  }
  base::log_info("rank {}: libfabric {}.{}, provider {} on {}, signals '{}', {} rails", rank,
                 FI_MAJOR(library.version()), FI_MINOR(library.version()),
                 endpoint->traits_.provider, info.domain_attr->name,
                 to_string(endpoint->traits_.signals), settings.rails);
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

template <typename Add>
Result<Region> LibfabricEndpoint::add_to_rails(std::byte* base, const Add& add) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Result<int> memory = add(rail(i));
    if (memory.ok()) continue;
    while (i-- > 0) rail(i).drop_last_memory();
    return memory.status();
  }
  regions_.push_back(base);
  return static_cast<Region>(regions_.size()) - 1;
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
    const Result<std::string> own = rail(i).name();
    if (!own.ok()) return own.status();
    if (name.size() != own->size()) {
      return {
          StatusCode::mismatch,
          fmt::format("transport: rank {} has an address of {} bytes, rank {} one of {} (IPv4 and "
                      "IPv6?)",
                      rank_, own->size(), peer, name.size())};
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
  of(peer).paths = std::move(paths);
  return {};
}

LibfabricEndpoint::Post* LibfabricEndpoint::new_post(Post::Kind kind, int peer) {
  if (free_posts_.empty()) {
    // As many as are under way at once; posts to peers that fell silent never come back.
    posts_.emplace_back();
    free_posts_.push_back(&posts_.back());
  }
  Post* const post = free_posts_.back();
  free_posts_.pop_back();
  post->kind = kind;
  post->peer = peer;
  return post;
}

Posted LibfabricEndpoint::write(Rail::Write& write, std::size_t rail_number, Post* post) {
  write.peer = of(post->peer).paths[rail_number].address;
  write.context = &post->context;
  const long error = rail(rail_number).write(write);
  if (error == 0) return Posted::yes;
  release(post);
  if (error == -FI_EAGAIN) return Posted::busy;
  lose(post->peer, error);
  return Posted::gone;
}

bool LibfabricEndpoint::may_put(int peer) {
  Peer& known = of(peer);
  const auto window = static_cast<std::uint64_t>(traits_.window);
  if (known.posted - known.seen_taken < window) return true;
  // The larger: where the wire keeps no order, an old word may lie over a newer one for a while.
  known.seen_taken = std::max(known.seen_taken, desk_.load(desk_.taken(peer)));
  return known.posted - known.seen_taken < window;
}

Posted LibfabricEndpoint::put(const Chunk& chunk) {
  Peer& peer = of(chunk.peer);
  if (peer.gone) return Posted::gone;
  const std::size_t rail_number = peer.next_path;
  Path& path = peer.paths[rail_number];
  if (!may_put(chunk.peer) || !path.signals.empty()) return Posted::busy;

  if (chunk.bytes == 0 && in_words()) {
    ready_.push_back({Event::Kind::sent, chunk.peer, 0, chunk.context});
    signal(chunk.peer, rail_number, chunk.immediate);
  } else {
    Post* const post = new_post(Post::Kind::chunk, chunk.peer);
    post->immediate = chunk.immediate;
    post->user = chunk.context;
    Rail::Write write;
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
    const Posted posted = this->write(write, rail_number, post);
    if (posted != Posted::yes) return posted;
    // Behind the chunk on the same endpoint, which keeps the order of writes.
    if (traits_.signals == SignalMode::ordered) signal(chunk.peer, rail_number, chunk.immediate);
  }
  ++peer.posted;
  peer.bytes += chunk.bytes;
  peer.next_path = (rail_number + 1) % peer.paths.size();
  return Posted::yes;
}

// Whether the provider took it.
bool LibfabricEndpoint::write_word(Post::Kind kind, int peer, std::size_t rail_number,
                                   std::size_t own, std::size_t remote, std::uint64_t word) {
  const Path& path = of(peer).paths[rail_number];
  Rail::Write write;
  write.memory = kDeskMemory;
  write.from = desk_.keep(own, word);
  write.bytes = sizeof(word);
  write.to = path.desk.base + Desk::offset(remote);
  write.key = path.desk.key;
  write.flags = kind == Post::Kind::tell ? tell_flags_ : 0;
  return this->write(write, rail_number, new_post(kind, peer)) == Posted::yes;
}

void LibfabricEndpoint::signal(int peer, std::size_t rail_number, std::uint32_t immediate) {
  of(peer).paths[rail_number].signals.push_back(immediate);
  flush(peer);
}

void LibfabricEndpoint::flush(int peer) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Path& path = of(peer).paths[i];
    while (!path.signals.empty()) {
      const std::uint64_t number = path.signalled + 1;
      const int rail_number = static_cast<int>(i);
      if (!write_word(Post::Kind::signal, peer, i, desk_.signal(rail_number, peer, number),
                      desk_.signal(rail_number, rank_, number),
                      Desk::word(number, path.signals.front()))) {
        return note_due(peer);  // If the peer is lost, there is nothing left to flush.
      }
      path.signalled = number;
      path.signals.pop_front();
    }
  }
}

void LibfabricEndpoint::tell_taken(int peer) {
  Peer& known = of(peer);
  const std::uint64_t tell_after = static_cast<std::uint64_t>(traits_.window) / kTellsPerWindow;
  if (known.gone || known.telling || known.taken - known.told < tell_after) return;
  const std::uint64_t taken = known.taken;
  if (!write_word(Post::Kind::tell, peer, 0, desk_.taken(peer), desk_.taken(rank_), taken)) {
    return note_due(peer);
  }
  known.told = taken;
  known.telling = true;
}

void LibfabricEndpoint::note_due(int peer) {
  if (of(peer).due || of(peer).gone) return;
  of(peer).due = true;
  due_.push_back(peer);
}

void LibfabricEndpoint::took(int peer, int chunks) {
  of(peer).taken += static_cast<std::uint64_t>(chunks);
  tell_taken(peer);
}

void LibfabricEndpoint::abandon(int peer) {
  Peer& abandoned = of(peer);
  abandoned.gone = true;
  for (Path& path : abandoned.paths) path.signals.clear();
}

void LibfabricEndpoint::lose(int peer, long error) {
  if (of(peer).gone) return;
  base::log_warn("rank {}: {}", rank_,
                 library_.failure(fmt::format("rank {} cannot be reached", peer), error).message());
  abandon(peer);
  ready_.push_back({Event::Kind::lost, peer, 0, 0});
}

std::size_t LibfabricEndpoint::poll(std::span<Event> events) {
  for (std::size_t left = due_.size(); left > 0; --left) {
    const int peer = due_.front();
    due_.erase(due_.begin());
    of(peer).due = false;
    if (of(peer).gone) continue;
    flush(peer);
    tell_taken(peer);
  }
  std::size_t count = 0;
  for (; count < events.size() && !ready_.empty(); ready_.pop_front()) {
    events[count++] = ready_.front();
  }
  ++turn_;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const std::size_t number = (turn_ + i) % rails_.size();
    count += poll_sent(number, events.subspan(count));
    count += poll_arrived(number, events.subspan(count));
    if (in_words()) count += poll_words(number, events.subspan(count));
  }
  return count;
}

std::span<const fi_cq_data_entry> LibfabricEndpoint::read(fid_cq* queue, std::size_t at_most,
                                                          Entries& entries) {
  if (at_most == 0) return {};
  const ssize_t count = fi_cq_read(queue, entries.data(), std::min(at_most, entries.size()));
  if (count == -FI_EAVAIL) take_errors(queue);
  return {entries.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

std::size_t LibfabricEndpoint::poll_sent(std::size_t rail_number, std::span<Event> events) {
  Entries entries;
  std::size_t count = 0;
  for (const fi_cq_data_entry& entry : read(rail(rail_number).sent(), events.size(), entries)) {
    auto* const post = static_cast<Post*>(entry.op_context);
    if (post == nullptr) continue;
    if (post->kind == Post::Kind::tell) {
      of(post->peer).telling = false;
      note_due(post->peer);  // More may have been taken meanwhile.
    } else if (post->kind == Post::Kind::chunk && !of(post->peer).gone) {
      // Delivered: now its signal may go.
      if (traits_.signals == SignalMode::serial) signal(post->peer, rail_number, post->immediate);
      events[count++] = {Event::Kind::sent, post->peer, 0, post->user};
    }
    release(post);
  }
  return count;
}

std::size_t LibfabricEndpoint::poll_arrived(std::size_t rail_number, std::span<Event> events) {
  Entries entries;
  std::size_t count = 0;
  // Where signals are words nothing is found here, but without a read the provider does not move.
  for (const fi_cq_data_entry& entry : read(rail(rail_number).arrived(), events.size(), entries)) {
    if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) continue;
    events[count++] = {Event::Kind::arrived, -1, static_cast<std::uint32_t>(entry.data), 0};
  }
  return count;
}

std::size_t LibfabricEndpoint::poll_words(std::size_t rail_number, std::span<Event> events) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const int peer = static_cast<int>((turn_ + i) % peers_.size());
    if (of(peer).paths.empty()) continue;
    Path& path = of(peer).paths[rail_number];
    while (count < events.size()) {
      const std::uint64_t number = path.heard + 1;
      const std::uint64_t word =
          desk_.load(desk_.signal(static_cast<int>(rail_number), peer, number));
      if (!Desk::is_number(word, number)) break;
      path.heard = number;
      events[count++] = {Event::Kind::arrived, -1, static_cast<std::uint32_t>(word), 0};
    }
  }
  return count;
}

// A peer's death fails all that was on its way to it: hundreds of entries, which healthy peers'
// completions lie behind.
void LibfabricEndpoint::take_errors(fid_cq* queue) {
  // To the others nothing of ours was posted: a context there is the provider's.
  const bool ours = std::any_of(rails_.begin(), rails_.end(),
                                [&](const auto& rail) { return rail->sent() == queue; });
  for (int i = 0; i < kErrorsAtOnce; ++i) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(queue, &error, 0) <= 0) return;
    if (!ours || error.op_context == nullptr) {
      base::log_debug("rank {}: libfabric: {} ({})", rank_, library_.strerror(error.err),
                      error.err);
      continue;
    }
    auto* const post = static_cast<Post*>(error.op_context);
    lose(post->peer, error.err);
    release(post);
  }
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
