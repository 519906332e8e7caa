// SPDX-License-Identifier: MIT
#include "bootstrap/lifelines.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "bootstrap/callers.hpp"
#include "store/socket.hpp"
#include "transport/own_address.hpp"

namespace sluice::bootstrap {
namespace {

using base::Deadline;
using base::Descriptor;
using std::chrono::nanoseconds;

/// What a rank tells the others.
struct Listening {
  Descriptor socket;  // Closed: it cannot listen.
  std::string at;
  std::string secret;  // Who calls says it.
};

Listening listen(int rank, const std::string& host) {
  Listening listening;
  store::Address address;
  address.host = host;
  auto secret = store::random_name();
  auto socket = store::listen_at(address);
  Status status = secret.ok() ? socket.status() : secret.status();
  if (status.ok()) {
    // In numbers: others need not know the name, nor know it as the same machine.
    const auto at = store::local_address(*socket);
    status = at.status();
    if (at.ok()) listening = {std::move(*socket), store::to_string(*at), *secret};
  }
  if (!status.ok()) {
    base::log_info("rank {}: no connections that show when it ends: {}", rank, status.message());
  }
  return listening;
}

/// Whether the peer can be reached there: loopback addresses of other machines are not those machines.
bool leads_there(const std::string& at, bool same_network) {
  const auto address = store::parse_address(at);
  if (!address.ok()) return false;
  return same_network || !transport::is_loopback(address->host);
}

Result<Descriptor> call(int rank, std::string_view blob, bool same_network, Deadline deadline) {
  base::ByteReader reader(blob);
  const std::string at = reader.get_string();
  const std::string secret = reader.get_string();
  if (!leads_there(at, same_network)) {
    return Status(StatusCode::unavailable,
                  at.empty() ? "it does not listen" : "it listens at " + at);
  }
  const auto address = store::parse_address(at);
  auto socket = store::connect_to(*address, deadline);
  if (!socket.ok()) return socket;
  const Status said = say_hello(*socket, secret, rank, deadline, "the first words");
  if (!said.ok()) return said;
  return socket;
}

}  // namespace

Result<Lifelines> Lifelines::tie(int rank, int size, const std::vector<Peer>& peers,
                                 const std::string& host, const Gather& gather,
                                 nanoseconds longest) {
  const Listening listening = listen(rank, host);
  const auto blobs =
      gather(base::ByteWriter().put_string(listening.at).put_string(listening.secret).take());
  if (!blobs.ok()) return blobs.status();
  const auto end = Deadline::after(longest);
  const auto blob_of = [&](int peer) -> std::string_view {
    return (*blobs)[static_cast<std::size_t>(peer)];
  };

  Lifelines all;
  all.lines_.resize(static_cast<std::size_t>(size));
  std::vector<int> awaited;
  std::vector<Peer> called;
  for (const Peer& peer : peers) {  // The higher rank calls.
    if (peer.rank < rank) {
      called.push_back(peer);
    } else if (listening.socket.open() && leads_there(listening.at, peer.same_network)) {
      awaited.push_back(peer.rank);
    }
  }
  for (auto peer = called.begin(); peer != called.end(); ++peer) {
    // Who cannot be reached takes his share of the time, and no more.
    const nanoseconds left(end.remaining_ns());
    auto line = call(rank, blob_of(peer->rank), peer->same_network,
                     Deadline::after(left / (called.end() - peer)));
    if (line.ok()) {
      all.lines_[static_cast<std::size_t>(peer->rank)] = std::move(*line);
    } else {
      base::log_info("rank {}: no connection that shows when rank {} ends: {}", rank, peer->rank,
                     line.status().message());
    }
  }
  Callers callers(listening.socket, listening.secret, /*same_user=*/false);
  while (!awaited.empty()) {
    std::vector<pollfd> entries;
    callers.add_entries(entries);
    // Also where a caller waits all the while for whom there is no descriptor.
    if (store::poll_until(entries, end) == 0 || end.expired()) break;
    callers.step(entries, [&](int peer, Descriptor socket) {
      if (std::erase(awaited, peer) == 0) return;
      all.lines_[static_cast<std::size_t>(peer)] = std::move(socket);
    });
  }
  for (const int peer : awaited) {
    base::log_info("rank {}: no connection that shows when rank {} ends: it did not call", rank,
                   peer);
  }
  return all;
}

bool Lifelines::cut(int peer) const noexcept {
  const auto index = static_cast<std::size_t>(peer);
  if (index >= lines_.size() || !lines_[index].open()) return false;
  // Looked at and left there: a goodbye stays to be seen.
  char word = 0;
  const ssize_t got = ::recv(lines_[index].number(), &word, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void Lifelines::say_goodbye() const noexcept {
  for (const Descriptor& line : lines_) {
    if (line.open()) static_cast<void>(::send(line.number(), "!", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
}

}  // namespace sluice::bootstrap
