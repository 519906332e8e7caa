// SPDX-License-Identifier: MIT
#include "bootstrap/mesh_connect.hpp"

#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/agreement.hpp"
#include "bootstrap/callers.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

using base::Descriptor;

constexpr std::size_t kNonceBytes = 32;

class Connector {
 public:
  Connector(int rank, const std::vector<Introduction>& ranks, const Descriptor& listener,
            base::Deadline deadline)
      : rank_(rank),
        ranks_(ranks),
        deadline_(deadline),
        callers_(listener, ranks.front().nonce, /*same_user=*/true),
        peers_(ranks.size()) {}

  Result<Mesh> run() {
    if (Status status = watch_processes(); !status.ok()) return status;
    for (int peer = 0; peer < rank_; ++peer) {
      if (Status status = call(peer); !status.ok()) return status;
    }
    while (missing_count() > 0) {
      if (Status status = accept_one_round(); !status.ok()) return status;
      // Also where a caller waits all the while for whom there is no descriptor.
      if (missing_count() > 0 && deadline_.expired()) return deadline_status();
    }
    return Mesh(rank_, std::move(peers_));
  }

 private:
  Mesh::Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Introduction& introduction(int peer) const {
    return ranks_[static_cast<std::size_t>(peer)];
  }
  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  bool is_missing(int peer) {
    return peer > rank_ && peer < size() && !peer_at(peer).socket.open();
  }
  int missing_count() {
    int count = 0;
    for (int peer = rank_ + 1; peer < size(); ++peer) count += is_missing(peer) ? 1 : 0;
    return count;
  }
  static Status ended_status(int peer) {
    return Status(StatusCode::unavailable,
                  "rank " + std::to_string(peer) + " ended while the world was joining");
  }
  // Of which nothing was found where it says it is.
  static Status absent_status(int peer) {
    return Status(StatusCode::unavailable,
                  ended_status(peer).message() +
                      ", or it is on a machine that was restored from the same image as this one, "
                      "with the same /proc/sys/kernel/random/boot_id: there SLUICE_NODE and "
                      "SLUICE_NETWORK_ADDRESS have to be set");
  }

  Status watch_processes() {
    const std::string& own_space = introduction(rank_).host.process_space;
    for (int peer = 0; peer < size(); ++peer) {
      const HostIdentity& host = introduction(peer).host;
      if (peer == rank_ || own_space.empty() || host.process_space != own_space) continue;
      auto watch = watch_process(host.process);
      if (watch.status().code() == StatusCode::unavailable) return absent_status(peer);
      if (!watch.ok()) return watch.status();
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
      if (socket.status().code() == StatusCode::unavailable) return absent_status(peer);
      return socket.status();
    }
    auto credentials = store::peer_credentials(*socket);
    if (!credentials.ok()) return credentials.status();
    if (!credentials->same_user) {
      return Status(StatusCode::io_error,
                    "rank " + std::to_string(peer) + " runs as another user than this rank");
    }
    Status status = say_hello(*socket, ranks_.front().nonce, rank_, deadline_,
                              "the first bytes to rank " + std::to_string(peer));
    if (status.code() == StatusCode::unavailable) return ended_status(peer);
    if (status.ok()) peer_at(peer).socket = std::move(*socket);
    return status;
  }

  // Waits until something happens, then deals with all of it.
  Status accept_one_round() {
    std::vector<pollfd> entries;
    callers_.add_entries(entries);
    const std::size_t peers_at = entries.size();
    for (int peer = 0; peer < size(); ++peer) {
      entries.push_back({peer_at(peer).process.number(), POLLIN, 0});
      entries.push_back({peer_at(peer).socket.number(), POLLRDHUP, 0});
    }
    if (store::poll_until(entries, deadline_) == 0) return deadline_status();

    callers_.step(entries, [&](int peer, Descriptor socket) {
      if (is_missing(peer)) peer_at(peer).socket = std::move(socket);
    });
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t at = peers_at + 2 * static_cast<std::size_t>(peer);
      if (entries[at].revents != 0 || entries[at + 1].revents != 0) return ended_status(peer);
    }
    return {};
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
  const base::Deadline deadline_;
  Callers callers_;
  std::vector<Mesh::Peer> peers_;
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
