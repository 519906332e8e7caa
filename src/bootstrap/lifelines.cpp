// SPDX-License-Identifier: MIT
#include "bootstrap/lifelines.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

using base::Deadline;
using base::Descriptor;
using std::chrono::milliseconds;

constexpr milliseconds kAllLines{2000};
// Ranks say who they are at once: who does not is a stranger.
constexpr milliseconds kHello{200};

/// What a rank tells the others.
struct Listening {
  Descriptor socket;  // Closed: it cannot listen.
  std::string at;
  std::string secret;  // Who calls says it.
};

Listening listen(const std::string& host) {
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
    base::log_info("no connections that show when a process ends: {}", status.message());
  }
  return listening;
}

/// A rank's first and only words.
std::string hello_of(int rank, const std::string& secret) {
  return base::ByteWriter().put_string(secret).put(std::int32_t{rank}).take();
}

Result<Descriptor> call(int rank, std::string_view blob, Deadline deadline) {
  base::ByteReader reader(blob);
  const std::string at = reader.get_string();
  const std::string secret = reader.get_string();
  if (at.empty()) return Status(StatusCode::unavailable, "it does not listen");
  const auto address = store::parse_address(at);
  if (!address.ok()) return address.status();
  auto socket = store::connect_to(*address, deadline);
  if (!socket.ok()) return socket;
  const Status said = store::send_all(*socket, hello_of(rank, secret), deadline, "its first words");
  if (!said.ok()) return said;
  return socket;
}

// The rank that is there; -1: a stranger.
int rank_behind(const Descriptor& socket, const std::string& secret, Deadline deadline) {
  std::string words = hello_of(0, secret);
  const auto soon = Deadline::after(kHello);
  const bool sooner = deadline.at_ns() < soon.at_ns();
  if (!store::receive_all(socket, words, sooner ? deadline : soon, "first words").ok()) return -1;
  base::ByteReader reader(words);
  if (reader.get_string() != secret) return -1;
  return reader.get<std::int32_t>();
}

}  // namespace

Result<Lifelines> Lifelines::tie(int rank, int size, const std::vector<int>& peers,
                                 const std::string& host, const Gather& gather, Deadline deadline) {
  const Listening listening = listen(host);
  const auto blobs =
      gather(base::ByteWriter().put_string(listening.at).put_string(listening.secret).take());
  if (!blobs.ok()) return blobs.status();
  const auto at_most = Deadline::after(kAllLines);
  const Deadline end = at_most.at_ns() < deadline.at_ns() ? at_most : deadline;

  Lifelines all;
  all.lines_.resize(static_cast<std::size_t>(size));
  std::vector<int> awaited;  // The higher rank calls.
  for (const int peer : peers) {
    if (peer > rank) {
      if (listening.socket.open()) awaited.push_back(peer);
      continue;
    }
    const auto index = static_cast<std::size_t>(peer);
    auto line = call(rank, (*blobs)[index], end);
    if (line.ok()) {
      all.lines_[index] = std::move(*line);
    } else {
      base::log_info("rank {}: no connection that shows when rank {} ends: {}", rank, peer,
                     line.status().message());
    }
  }
  while (!awaited.empty()) {
    pollfd entry{listening.socket.number(), POLLIN, 0};
    if (store::poll_until({&entry, 1}, end) == 0) break;
    Descriptor caller = store::accept_from(listening.socket);
    if (!caller.open()) break;  // Out of descriptors, above all.
    const int peer = rank_behind(caller, listening.secret, end);
    if (std::erase(awaited, peer) > 0) {
      all.lines_[static_cast<std::size_t>(peer)] = std::move(caller);
    }
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
