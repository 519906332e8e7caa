// SPDX-License-Identifier: MIT
#include "bootstrap/mesh.hpp"

#include <sys/socket.h>

#include <new>
#include <utility>

#include "bootstrap/agreement.hpp"
#include "bootstrap/mesh_transfer.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

const char* kind_name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::all_gather: return "all_gather";
    case ExchangeKind::share: return "share";
    case ExchangeKind::share_outcome: return "the end of share";
    case ExchangeKind::split: return "split";
    case ExchangeKind::files: return "exchange_files";
    case ExchangeKind::files_outcome: return "the end of exchange_files";
  }
  return "an unknown call";
}

Status garbled_status(int peer, const MessageHeader& seen, const MessageHeader& expected) {
  if (seen.magic != MessageHeader::kMagic) {
    return Status(StatusCode::internal,
                  "rank " + std::to_string(peer) + " sent bytes that are no message");
  }
  return Status(StatusCode::mismatch,
                "rank " + std::to_string(peer) + " is in " + kind_name(seen.kind) +
                    " as its exchange " + std::to_string(seen.sequence) + ", this rank in " +
                    kind_name(expected.kind) + " as its exchange " +
                    std::to_string(expected.sequence) +
                    ": collective calls must come in the same order on every rank");
}

/// One exchange in progress: all peers' messages, both ways, driven by one poll().
class Exchange {
 public:
  Exchange(const std::vector<Mesh::Peer>& peers, int rank, const MessageHeader& header,
           std::string_view blob, const base::Descriptor* file)
      : peers_(peers), rank_(rank), header_(header) {
    sendings_.reserve(peers.size());
    for (std::size_t peer = 0; peer < peers.size(); ++peer) {
      sendings_.emplace_back(header, blob, file);
    }
    receivings_.resize(peers.size());
  }

  struct Failure {
    int peer = -1;
    Progress progress = Progress::gone;
  };

  /// Moves what can be moved. True: all is done, or `failure` is set.
  bool advance(Failure& failure) {
    bool all_done = true;
    starved_ = false;
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank_ + step) % size();
      const auto index = static_cast<std::size_t>(peer);
      const int socket = peers_[index].socket.number();
      // Both ways are tried: a peer that is gone may still have sent all that is wanted of it.
      const Progress sent = sendings_[index].advance(socket);
      const Progress received = receivings_[index].advance(socket, header_);
      for (const Progress progress : {received, sent}) {
        if (progress == Progress::blocked || progress == Progress::starved) all_done = false;
        starved_ = starved_ || progress == Progress::starved;
        if (progress == Progress::gone || progress == Progress::garbled) {
          failure = {peer, progress};
          return true;
        }
      }
    }
    return all_done;
  }

  /// An unfinished peer whose process has ended. Its socket need not tell: a child of the peer that was not made by fork()
  /// may keep it open.
  int ended_peer() const {
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (entries_[i].revents != 0 && watched_[i].is_process) return watched_[i].peer;
    }
    return -1;
  }

  bool wait(base::Deadline deadline) {
    entries_.clear();
    watched_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      if (peer == rank_) continue;
      const int events =
          (receivings_[index].done() ? 0 : POLLIN) | (sendings_[index].done() ? 0 : POLLOUT);
      if (events == 0) continue;
      entries_.push_back({peers_[index].socket.number(), static_cast<short>(events), 0});
      watched_.push_back({peer, false});
      entries_.push_back({peers_[index].process.number(), POLLIN, 0});
      watched_.push_back({peer, true});
    }
    return store::poll_until(entries_, deadline) > 0 && !(starved_ && deadline.expired());
  }

  std::vector<int> unfinished() const {
    std::vector<int> ranks;
    for (int peer = 0; peer < size(); ++peer) {
      if (is_unfinished(peer)) ranks.push_back(peer);
    }
    return ranks;
  }

  bool is_unfinished(int peer) const {
    const auto index = static_cast<std::size_t>(peer);
    return peer != rank_ && !(receivings_[index].done() && sendings_[index].done());
  }

  Receiving& receiving(int peer) { return receivings_[static_cast<std::size_t>(peer)]; }
  int size() const noexcept { return static_cast<int>(peers_.size()); }

 private:
  struct Watched {
    int peer;
    bool is_process;
  };

  const std::vector<Mesh::Peer>& peers_;
  const int rank_;
  const MessageHeader header_;
  std::vector<Sending> sendings_;
  std::vector<Receiving> receivings_;
  std::vector<pollfd> entries_;
  std::vector<Watched> watched_;
  bool starved_ = false;  // Something could be moved, were there memory for it.
};

}  // namespace

Result<std::vector<Mesh::Message>> Mesh::exchange(ExchangeKind kind, std::string_view blob,
                                                  const base::Descriptor* file,
                                                  base::Deadline deadline) try {
  if (!broken_.ok()) {
    return Status(broken_.code(),
                  "an earlier call has ended this world's exchanges: " + broken_.message());
  }
  MessageHeader header;
  header.kind = kind;
  header.sequence = sequence_++;
  header.length = blob.size();
  Exchange exchange(peers_, rank_, header, blob, file);
  Exchange::Failure failure;
  int ended = -1;
  while (!exchange.advance(failure)) {
    if (ended >= 0 && exchange.is_unfinished(ended)) return broken_ = gone_status(ended);
    if (!exchange.wait(deadline)) {
      return broken_ =
                 Status(StatusCode::deadline_exceeded, std::string(kind_name(kind)) + ": " +
                                                           ranks_text(exchange.unfinished()) +
                                                           " did not come before the deadline");
    }
    // Its last bytes are read once more before it is given up.
    ended = exchange.ended_peer();
  }
  if (failure.peer >= 0) {
    if (failure.progress == Progress::gone) return broken_ = gone_status(failure.peer);
    return broken_ =
               garbled_status(failure.peer, exchange.receiving(failure.peer).header(), header);
  }
  std::vector<Message> messages(peers_.size());
  for (int peer = 0; peer < size(); ++peer) {
    const std::uint64_t length =
        peer == rank_ ? blob.size() : exchange.receiving(peer).header().length;
    if (length > kBlobBytesMax) {
      return Status(StatusCode::invalid_argument,
                    "rank " + std::to_string(peer) + " gave a blob of " + std::to_string(length) +
                        " bytes, expected at most " + std::to_string(kBlobBytesMax));
    }
    auto& message = messages[static_cast<std::size_t>(peer)];
    if (peer == rank_) {
      message.blob = blob;
    } else {
      message = std::move(exchange.receiving(peer).message());
    }
  }
  return messages;
} catch (const std::bad_alloc&) {
  give_up(Status(StatusCode::out_of_memory,
                 "rank " + std::to_string(rank_) + " has no memory for peers' blobs"));
  return broken_;
}

Status Mesh::gone_status(int peer) const {
  const char* what = " has ended without leaving this world";
  const auto state = state_of_ ? state_of_(peer) : memory::RankState::alive;
  if (state == memory::RankState::left) what = " has left this world";
  if (state == memory::RankState::gave_up) what = " was cut short, and makes no more such calls";
  return Status(StatusCode::unavailable, "rank " + std::to_string(peer) + what);
}

void Mesh::give_up(const Status& why) noexcept {
  if (!broken_.ok()) return;
  try {
    broken_ = why;
  } catch (const std::bad_alloc&) {
    broken_ = Status(StatusCode::out_of_memory, "no memory");  // Too short to need any.
  }
  // Before the end of the connection, which says the rest.
  if (say_gave_up_) say_gave_up_();
  close_sending(std::move(broken_));
}

void Mesh::close_sending(Status reason) {
  broken_ = std::move(reason);
  for (const Peer& peer : peers_) {
    if (peer.socket.open()) ::shutdown(peer.socket.number(), SHUT_WR);
  }
}

}  // namespace sluice::bootstrap
