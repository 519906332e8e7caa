// SPDX-License-Identifier: MIT
#include "transport/libfabric/outlet.hpp"

#include <fmt/format.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/deadline.hpp"
#include "base/log.hpp"

namespace sluice::transport {

Outlet::Outlet(const Library& library, int rank, int ranks, const Traits& traits,
               std::uint64_t tell_flags, Desk& desk)
    : library_(library),
      rank_(rank),
      signals_(traits.signals),
      window_(static_cast<std::uint64_t>(traits.window)),
      tell_flags_(tell_flags),
      desk_(desk),
      peers_(static_cast<std::size_t>(ranks)) {}

Outlet::Post* Outlet::new_post(Post::Kind kind, int peer) {
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

Posted Outlet::write(Rail::Write& write, std::size_t rail, Post* post) {
  write.peer = of(post->peer).paths[rail].address;
  write.context = &post->context;
  const long error = rails_[rail]->write(write);
  if (error == 0) return Posted::yes;
  release(post);
  if (error == -FI_EAGAIN) {
    refused_ = true;
    return Posted::busy;
  }
  lose(post->peer, error);
  return Posted::gone;
}

Rail::Piece Outlet::piece_of(const Path& path, const Piece& piece) const noexcept {
  const RemoteMemory& to = path.regions[static_cast<std::size_t>(piece.to)];
  return {memory_of(piece.from),
          memories_[static_cast<std::size_t>(piece.from)] + piece.from_offset, piece.bytes,
          to.base + piece.to_offset, to.key};
}

// Of the desks: from a place of this rank's to one of the peer's.
Rail::Piece Outlet::word_of(const Path& path, std::size_t own, std::size_t remote,
                            std::uint64_t word) noexcept {
  return {kDeskMemory, desk_.keep(own, word), sizeof(word), path.desk.base + Desk::offset(remote),
          path.desk.key};
}

Posted Outlet::put(const Chunk& chunk) {
  Peer& peer = of(chunk.peer);
  if (peer.gone) return Posted::gone;
  const std::size_t rail = peer.next_path;
  Path& path = peer.paths[rail];
  if (!path.signals.empty()) return Posted::busy;

  const Path::Signal signal{chunk.immediate, peer.put};
  const bool alone = chunk.bytes == 0 && in_words();
  if (!alone) {
    Post* const post = new_post(Post::Kind::chunk, chunk.peer);
    post->immediate = chunk.immediate;
    post->number = peer.put;
    post->user = chunk.context;
    Rail::Write write;
    write.flags = in_words() ? 0 : FI_REMOTE_CQ_DATA;
    if (signals_ == SignalMode::serial) write.flags = FI_DELIVERY_COMPLETE;
    write.data = chunk.immediate;
    write.pieces[0] = chunk.bytes > 0 ? piece_of(path, {chunk.from, chunk.from_offset, chunk.to,
                                                        chunk.to_offset, chunk.bytes})
                                      : word_of(path, desk_.unread(), desk_.unread(), 0);
    for (const Piece& piece : chunk.with) write.pieces[write.count++] = piece_of(path, piece);
    const Posted posted = this->write(write, rail, post);
    if (posted != Posted::yes) return posted;
  }
  ++peer.put;
  peer.later.push_back(0);
  if (alone) ready_.push_back({Event::Kind::sent, chunk.peer, 0, chunk.context});
  // Behind the chunk on the same endpoint, which keeps the order of writes.
  if (alone || signals_ == SignalMode::ordered) this->signal(chunk.peer, rail, signal);
  peer.next_path = (rail + 1) % peer.paths.size();
  return Posted::yes;
}

// Whether the provider took it.
bool Outlet::write_word(Post* post, std::size_t rail, std::size_t own, std::size_t remote,
                        std::uint64_t word) {
  const Path& path = of(post->peer).paths[rail];
  Rail::Write write;
  write.pieces[0] = word_of(path, own, remote, word);
  write.flags = post->kind == Post::Kind::tell ? tell_flags_ : 0;
  return this->write(write, rail, post) == Posted::yes;
}

void Outlet::signal(int peer, std::size_t rail, Path::Signal signal) {
  of(peer).paths[rail].signals.push_back(signal);
  flush(peer);
}

// Rails overtake each other.
void Outlet::note_out(int peer, std::uint64_t number) {
  Peer& known = of(peer);
  known.later[number - known.out] = 1;
  for (; !known.later.empty() && known.later.front() != 0; ++known.out) known.later.pop_front();
}

void Outlet::flush(int peer) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Path& path = of(peer).paths[i];
    while (!path.signals.empty()) {
      const std::uint64_t number = path.signalled + 1;
      const int rail = static_cast<int>(i);
      Post* const post = new_post(Post::Kind::signal, peer);
      post->number = path.signals.front().number;
      if (!write_word(post, i, desk_.signal(rail, peer, number), desk_.signal(rail, rank_, number),
                      Desk::word(number, path.signals.front().immediate))) {
        return note_due(peer);  // If the peer is lost, there is nothing left to flush.
      }
      path.signalled = number;
      path.signals.pop_front();
    }
  }
}

void Outlet::tell_taken(int peer) {
  Peer& known = of(peer);
  const std::uint64_t tell_after = window_ / kTellsPerWindow;
  if (known.gone || known.telling || known.taken - known.told < tell_after) return;
  const std::uint64_t taken = known.taken;
  if (!write_word(new_post(Post::Kind::tell, peer), 0, desk_.taken(peer), desk_.taken(rank_),
                  taken)) {
    return note_due(peer);
  }
  known.told = taken;
  known.telling = true;
}

void Outlet::note_due(int peer) {
  if (of(peer).due || of(peer).gone) return;
  of(peer).due = true;
  due_.push_back(peer);
}

void Outlet::took(int peer, int chunks) {
  of(peer).taken += static_cast<std::uint64_t>(chunks);
  tell_taken(peer);
}

void Outlet::abandon(int peer) {
  Peer& abandoned = of(peer);
  abandoned.gone = true;
  for (Path& path : abandoned.paths) path.signals.clear();
}

void Outlet::lose(int peer, long error) {
  if (of(peer).gone) return;
  // Whether it matters the caller knows, who is told. But that something has run out here always does, and so does that no
  // connection can be made: a firewall, or an address that does not lead there.
  const long kind = std::abs(error);  // libfabric names them as the system does.
  const bool ran_out = kind == EMFILE || kind == ENFILE || kind == ENOMEM || kind == ENOBUFS;
  const bool no_way = of(peer).out == 0 && (kind == ECONNREFUSED || kind == EHOSTUNREACH ||
                                            kind == ENETUNREACH || kind == ETIMEDOUT);
  base::log(ran_out || no_way ? base::LogLevel::warn : base::LogLevel::info, "rank {}: {}", rank_,
            library_.failure(fmt::format("rank {} cannot be reached", peer), error).message());
  abandon(peer);
  ready_.push_back({Event::Kind::lost, peer, 0, 0});
}

std::size_t Outlet::poll(std::span<Event> events) {
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
  const std::int64_t now_ns = base::now_ns();
  if (posts_.size() > free_posts_.size() || refused_ || now_ns > polled_ns_ + kQuietNs) {
    refused_ = refused_ && count == events.size();
    polled_ns_ = now_ns;
    ++turn_;
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      count += poll_sent((turn_ + i) % rails_.size(), events.subspan(count));
    }
  }
  return count;
}

std::size_t Outlet::poll_sent(std::size_t rail, std::span<Event> events) {
  if (events.empty()) return 0;
  std::array<fi_cq_data_entry, 16> entries;
  fid_cq* const queue = rails_[rail]->sent();
  const ssize_t found = fi_cq_read(queue, entries.data(), std::min(events.size(), entries.size()));
  if (found == -FI_EAVAIL) {
    take_errors(queue);
  } else if (found < 0 && found != -FI_EAGAIN && !failed_) {
    failed_ = true;  // What peers make of it they say by themselves.
    base::log_error("rank {}: {}", rank_,
                    library_.failure("what is sent is not to be known", found).message());
  }
  std::size_t count = 0;
  for (ssize_t i = 0; i < found; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<std::size_t>(i)];
    auto* const post = static_cast<Post*>(entry.op_context);
    if (post == nullptr) continue;
    if (post->kind == Post::Kind::tell) {
      of(post->peer).telling = false;
      note_due(post->peer);  // More may have been taken meanwhile.
    } else if (post->kind == Post::Kind::chunk && !of(post->peer).gone) {
      // Delivered: now its signal may go.
      if (signals_ == SignalMode::serial) {
        signal(post->peer, rail, {post->immediate, post->number});
      }
      events[count++] = {Event::Kind::sent, post->peer, 0, post->user};
    }
    if (post->kind == (in_words() ? Post::Kind::signal : Post::Kind::chunk)) {
      note_out(post->peer, post->number);
    }
    release(post);
  }
  return count;
}

// A peer's death fails all that was on its way to it: hundreds of entries, which healthy peers'
// completions lie behind.
void Outlet::take_errors(fid_cq* queue) {
  for (int i = 0; i < kErrorsAtOnce; ++i) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(queue, &error, 0) <= 0) return;
    if (error.op_context == nullptr) {
      base::log_debug("rank {}: libfabric: {} ({})", rank_, library_.strerror(error.err),
                      error.err);
      continue;
    }
    auto* const post = static_cast<Post*>(error.op_context);
    lose(post->peer, error.err);
    release(post);
  }
}

}  // namespace sluice::transport
