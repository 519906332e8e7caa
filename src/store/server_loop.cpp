// SPDX-License-Identifier: MIT
#include "store/server_loop.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "store/socket.hpp"

namespace sluice::store {
namespace {

// Connections that have not said hello. Beyond this the oldest is closed: strangers cannot take all
// descriptors of the process.
constexpr std::size_t kStrangersMax = 256;
// Replies that a client does not read stop further reading from it.
constexpr std::size_t kOutputBytesMax = 2 * kFrameBytesMax;
constexpr std::chrono::milliseconds kAcceptPause(20);

}  // namespace

ServerLoop::ServerLoop(base::Descriptor listener, const Address& address, int clients,
                       Attendance& attendance)
    : listener_(std::move(listener)),
      same_user_only_(address.kind == Address::Kind::unix_abstract),
      name_(address.name),
      attendance_(attendance),
      awaited_(static_cast<std::size_t>(clients), true) {}

void ServerLoop::run(const base::Descriptor& stop) {
  std::vector<pollfd> entries;
  for (;;) {
    entries.clear();
    entries.push_back({stop.number(), POLLIN, 0});
    entries.push_back({listener_.number(), POLLIN, 0});  // -1 once closed: poll() skips it.
    for (const Connection& connection : connections_) {
      const bool reads = !connection.closing && connection.output.size() < kOutputBytesMax;
      const int events = (reads ? POLLIN : 0) | (connection.output.empty() ? 0 : POLLOUT);
      entries.push_back({connection.socket.number(), static_cast<short>(events), 0});
    }
    poll_until(entries, base::Deadline::never());
    if (entries[0].revents != 0) return;

    auto entry = entries.begin() + 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++entry) {
      bool keep = true;
      try {
        keep = entry->revents == 0 || serve(*connection, entry->revents);
      } catch (const std::bad_alloc&) {  // Too little memory for its message: it goes, we stay.
        keep = false;
      }
      if (!keep) note_end(*connection);
      connection = keep ? std::next(connection) : connections_.erase(connection);
    }
    if (entries[1].revents != 0 && listener_.open()) accept_waiting();
  }
}

void ServerLoop::accept_waiting() {
  base::Descriptor socket = accept_from(listener_);
  if (!socket.open()) {
    // Out of descriptors, most likely: the listener stays readable, so do not spin on it.
    const bool short_of_them = errno == EMFILE || errno == ENFILE;
    if (!short_of_them || !drop_stranger()) std::this_thread::sleep_for(kAcceptPause);
    return;
  }
  if (same_user_only_) {
    const auto peer = peer_credentials(socket);
    if (!peer.ok() || !peer.value().same_user) return;
  }
  Connection connection;
  connection.socket = std::move(socket);
  connections_.push_back(std::move(connection));
  const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                       [](const Connection& one) { return !one.greeted; });
  if (static_cast<std::size_t>(strangers) > kStrangersMax) drop_stranger();
}

// The one that has said nothing for longest; whether there is any.
bool ServerLoop::drop_stranger() {
  const auto oldest = std::find_if(connections_.begin(), connections_.end(),
                                   [](const Connection& one) { return !one.greeted; });
  if (oldest == connections_.end()) return false;
  connections_.erase(oldest);
  return true;
}

bool ServerLoop::serve(Connection& connection, short events) {
  if ((events & POLLOUT) != 0 && !(send(connection) && handle_input(connection))) return false;
  if (connection.closing) return (events & (POLLHUP | POLLERR)) == 0;
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) return receive(connection);
  return true;
}

bool ServerLoop::receive(Connection& connection) {
  std::array<char, 16384> buffer;  // Stacks may be small.
  const ssize_t got = ::recv(connection.socket.number(), buffer.data(), buffer.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.input.append(buffer.data(), static_cast<std::size_t>(got));
  return handle_input(connection);
}

bool ServerLoop::handle_input(Connection& connection) {
  std::size_t at = 0;
  const std::string_view input = connection.input;
  while (!connection.closing && input.size() - at >= kFrameHeaderBytes) {
    if (connection.output.size() >= kOutputBytesMax) {
      if (!send(connection)) return false;
      if (connection.output.size() >= kOutputBytesMax) break;  // The others when some of it is out.
    }
    const auto length = decode_frame_header(input.substr(at, kFrameHeaderBytes));
    if (!length.ok()) return false;
    if (!connection.greeted && length.value() > kHelloBytesMax) return false;  // A stranger's.
    if (input.size() - at - kFrameHeaderBytes < length.value()) break;
    auto message = decode_request(input.substr(at + kFrameHeaderBytes, length.value()));
    if (!message.ok() || !handle(connection, message.value())) return false;
    at += kFrameHeaderBytes + length.value();
  }
  connection.input.erase(0, at);
  return send(connection);
}

bool ServerLoop::handle(Connection& connection, DecodedRequest& message) {
  connection.waiting.reset();
  if (connection.greeted == message.hello.has_value()) return false;
  if (message.hello.has_value()) {
    Reply reply;
    reply.status = greet(connection, *message.hello);
    // Others wait for a rank that knows alone why it does not come.
    if (!reply.status.ok() && !std::exchange(turned_away_, true)) {
      base::log_warn("the store of a world turns a rank away: {}", reply.status.to_string());
    }
    connection.greeted = reply.status.ok();
    connection.closing = !reply.status.ok();
    connection.output += encode_reply(message.id, reply);
    return true;
  }
  if (message.goodbye) {
    if (connection.client >= 0) attendance_.note_goodbye();
    connection.client = -1;
    connection.output += encode_reply(message.id, {});
    return true;
  }
  auto reply = table_.apply(message.request);
  if (!reply.has_value() && attendance_.loss().has_value()) {
    reply.emplace();
    reply->status = *attendance_.loss();
  }
  if (!reply.has_value()) {
    connection.waiting = std::move(message.request);
    connection.waiting_id = message.id;
    return true;
  }
  connection.output += encode_reply(message.id, *reply);
  if (!message.request.waits()) answer_waiting();
  return true;
}

// A rank that is lost will not set the keys that others wait for.
void ServerLoop::note_end(const Connection& ended) {
  if (ended.client < 0) return;
  attendance_.note_loss(ended.client);
  Reply reply;
  reply.status = *attendance_.loss();
  for (Connection& connection : connections_) {
    if (!connection.waiting.has_value() || &connection == &ended) continue;
    connection.waiting.reset();
    connection.output += encode_reply(connection.waiting_id, reply);
  }
}

Status ServerLoop::greet(Connection& connection, const Hello& hello) {
  if (hello.version != kProtocolVersion) {
    return Status(StatusCode::mismatch,
                  "the store is served by version " + std::to_string(kProtocolVersion) +
                      " of its protocol, a rank with version " + std::to_string(hello.version) +
                      " came: their builds of the library differ");
  }
  if (hello.name != name_)
    return {StatusCode::unavailable, "what is served there has another name"};
  if (awaited_.empty()) return {};
  if (hello.clients != awaited_.size() || hello.client >= awaited_.size()) {
    return Status(StatusCode::mismatch, "the rendezvous belongs to a world of " +
                                            std::to_string(awaited_.size()) + " ranks, rank " +
                                            std::to_string(hello.client) + " of a world of " +
                                            std::to_string(hello.clients) + " came");
  }
  if (!awaited_[hello.client]) {
    return Status(StatusCode::mismatch, "rank " + std::to_string(hello.client) +
                                            " has already joined the world at this rendezvous");
  }
  awaited_[hello.client] = false;
  connection.client = static_cast<int>(hello.client);
  if (std::find(awaited_.begin(), awaited_.end(), true) == awaited_.end()) listener_.reset();
  return {};
}

void ServerLoop::answer_waiting() {
  for (Connection& connection : connections_) {
    if (!connection.waiting.has_value()) continue;
    const auto reply = table_.apply(*connection.waiting);
    if (!reply.has_value()) continue;
    connection.waiting.reset();
    connection.output += encode_reply(connection.waiting_id, *reply);
  }
}

bool ServerLoop::send(Connection& connection) {
  std::string& output = connection.output;
  while (!output.empty()) {
    const ssize_t sent =
        ::send(connection.socket.number(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    output.erase(0, static_cast<std::size_t>(sent));
  }
  return !connection.closing;
}

}  // namespace sluice::store
