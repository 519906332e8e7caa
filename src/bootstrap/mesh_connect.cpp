// SPDX-License-Identifier: MIT
#include "bootstrap/mesh_connect.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "bootstrap/agreement.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

using base::Descriptor;

constexpr std::size_t kNonceBytes = 32;

/// The first bytes of a connection.
struct ConnectionHello {
  std::array<char, kNonceBytes> nonce{};
  std::int32_t rank = 0;
};
static_assert(sizeof(ConnectionHello) == kNonceBytes + 4);

/// An accepted connection that has not said who it is.
struct Caller {
  Descriptor socket;
  ConnectionHello hello;
  std::size_t bytes = 0;
};
// Beyond this the oldest is dropped: ranks say hello at once, so it is a stranger.
constexpr std::size_t kCallersMax = 512;

class Connector {
 public:
  Connector(int rank, const std::vector<Introduction>& ranks, const Descriptor& listener,
            base::Deadline deadline)
      : rank_(rank),
        ranks_(ranks),
        listener_(listener),
        deadline_(deadline),
        peers_(ranks.size()) {}

  Result<Mesh> run() {
    if (Status status = watch_processes(); !status.ok()) return status;
    for (int peer = 0; peer < rank_; ++peer) {
      if (Status status = call(peer); !status.ok()) return status;
    }
    while (missing_count() > 0) {
      if (Status status = accept_one_round(); !status.ok()) return status;
    }
    return Mesh(rank_, std::move(peers_));
  }

 private:
  Mesh::Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Introduction& introduction(int peer) const {
    return ranks_[static_cast<std::size_t>(peer)];
  }
  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  bool is_missing(int peer) { return peer > rank_ && !peer_at(peer).socket.open(); }
  int missing_count() {
    int count = 0;
    for (int peer = rank_ + 1; peer < size(); ++peer) count += is_missing(peer) ? 1 : 0;
    return count;
  }
  static Status ended_status(int peer) {
    return Status(StatusCode::unavailable,
                  "rank " + std::to_string(peer) + " ended while the world was joining");
  }

  Status watch_processes() {
    const std::string& own_space = introduction(rank_).host.process_space;
    for (int peer = 0; peer < size(); ++peer) {
      const HostIdentity& host = introduction(peer).host;
      if (peer == rank_ || own_space.empty() || host.process_space != own_space) continue;
      auto watch = watch_process(host.process);
      if (!watch.ok()) return ended_status(peer);
      peer_at(peer).process = std::move(*watch);
    }
    return {};
  }

  Status call(int peer) {
    store::Address address;
    address.kind = store::Address::Kind::unix_abstract;
    address.name = introduction(peer).listener;
    auto socket = store::connect_to(address, deadline_);
    if (!socket.ok()) {
      if (deadline_.expired()) {
        return Status(StatusCode::deadline_exceeded,
                      "rank " + std::to_string(peer) + " did not take a connection in time");
      }
      if (socket.status().code() == StatusCode::unavailable) return ended_status(peer);
      return socket.status();
    }
    auto credentials = store::peer_credentials(*socket);
    if (!credentials.ok()) return credentials.status();
    if (!credentials->same_user) {
      return Status(StatusCode::io_error,
                    "rank " + std::to_string(peer) + " runs as another user than this rank");
    }
    ConnectionHello hello;
    std::memcpy(hello.nonce.data(), ranks_.front().nonce.data(), kNonceBytes);
    hello.rank = rank_;
    std::array<char, sizeof(hello)> bytes{};
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    Status status = store::send_all(*socket, {bytes.data(), bytes.size()}, deadline_,
                                    "the first bytes to rank " + std::to_string(peer));
    if (status.code() == StatusCode::unavailable) return ended_status(peer);
    if (status.ok()) peer_at(peer).socket = std::move(*socket);
    return status;
  }

  // Waits until something happens, then deals with all of it.
  Status accept_one_round() {
    std::vector<pollfd> entries{{listener_.number(), POLLIN, 0}};
    for (const Caller& caller : callers_) entries.push_back({caller.socket.number(), POLLIN, 0});
    const std::size_t peers_at = entries.size();
    for (int peer = 0; peer < size(); ++peer) {
      entries.push_back({peer_at(peer).process.number(), POLLIN, 0});
      entries.push_back({peer_at(peer).socket.number(), POLLRDHUP, 0});
    }
    if (store::poll_until(entries, deadline_) == 0) return deadline_status();

    std::size_t entry = 1;
    for (auto caller = callers_.begin(); caller != callers_.end(); ++entry) {
      const bool keep = entries[entry].revents == 0 || hear(*caller);
      caller = keep ? std::next(caller) : callers_.erase(caller);
    }
    if (entries[0].revents != 0) accept_callers();
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t at = peers_at + 2 * static_cast<std::size_t>(peer);
      if (entries[at].revents != 0 || entries[at + 1].revents != 0) return ended_status(peer);
    }
    return {};
  }

  void accept_callers() {
    Descriptor socket = store::accept_from(listener_);
    if (!socket.open()) {
      // Out of descriptors: the listener stays readable, so do not spin until the deadline.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    const auto credentials = store::peer_credentials(socket);
    if (!credentials.ok() || !credentials.value().same_user) return;
    if (callers_.size() == kCallersMax) callers_.pop_front();
    callers_.push_back({std::move(socket), {}, 0});
  }

  // False: the caller is done with, as a peer or as a stranger.
  bool hear(Caller& caller) {
    std::array<char, sizeof(ConnectionHello)> bytes{};
    std::memcpy(bytes.data(), &caller.hello, sizeof(caller.hello));
    const ssize_t got =
        ::recv(caller.socket.number(), bytes.data() + caller.bytes, bytes.size() - caller.bytes, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    caller.bytes += static_cast<std::size_t>(got);
    std::memcpy(&caller.hello, bytes.data(), sizeof(caller.hello));
    if (caller.bytes < bytes.size()) return true;
    const bool knows_us = std::equal(caller.hello.nonce.begin(), caller.hello.nonce.end(),
                                     ranks_.front().nonce.begin());
    const int peer = caller.hello.rank;
    if (knows_us && peer < size() && is_missing(peer)) {
      peer_at(peer).socket = std::move(caller.socket);
    }
    return false;
  }

  Status deadline_status() {
    std::vector<int> missing;
    for (int peer = rank_ + 1; peer < size(); ++peer) {
      if (is_missing(peer)) missing.push_back(peer);
    }
    return Status(StatusCode::deadline_exceeded,
                  ranks_text(missing) + " did not connect before the deadline");
  }

  const int rank_;
  const std::vector<Introduction>& ranks_;
  const Descriptor& listener_;
  const base::Deadline deadline_;
  std::vector<Mesh::Peer> peers_;
  std::list<Caller> callers_;
};

}  // namespace

Result<Mesh> connect_mesh(int rank, const std::vector<Introduction>& ranks,
                          const base::Descriptor& listener, base::Deadline deadline) {
  if (ranks.front().nonce.size() != kNonceBytes) {
    return Status(StatusCode::mismatch, "rank 0 gave a nonce of " +
                                            std::to_string(ranks.front().nonce.size()) +
                                            " bytes, expected " + std::to_string(kNonceBytes));
  }
  return Connector(rank, ranks, listener, deadline).run();
}

}  // namespace sluice::bootstrap
