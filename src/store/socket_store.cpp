// SPDX-License-Identifier: MIT
#include "store/socket_store.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/system_error.hpp"
#include "store/socket.hpp"

namespace sluice::store {
namespace {

constexpr std::chrono::nanoseconds kRetryPauseMin = std::chrono::milliseconds(1);
constexpr std::chrono::nanoseconds kRetryPauseMax = std::chrono::milliseconds(100);
// Where it takes long, as many ranks perhaps ask a server of names each time.
constexpr std::chrono::nanoseconds kToldAfter = std::chrono::seconds(10);
constexpr std::chrono::nanoseconds kLateRetryPause = std::chrono::seconds(1);

}  // namespace

SocketStore::SocketStore(const Address& address, base::Descriptor socket)
    : name_("the store at " + to_string(address)), socket_(std::move(socket)) {}

Result<std::unique_ptr<SocketStore>> SocketStore::connect(const Address& address,
                                                          const Hello& hello,
                                                          base::Deadline deadline) {
  std::chrono::nanoseconds pause = kRetryPauseMin;
  const std::int64_t begun_ns = base::now_ns();
  bool told = false;
  Status last;
  for (;;) {
    Status failure;
    auto socket = connect_to(address, deadline);
    if (socket.ok() && address.kind == Address::Kind::unix_abstract) {
      const auto peer = peer_credentials(*socket);
      if (!peer.ok()) return peer.status();
      if (!peer.value().same_user) {
        return Status(StatusCode::io_error,
                      to_string(address) + " is served by a process of another user");
      }
    }
    if (socket.ok()) {
      std::unique_ptr<SocketStore> client(new SocketStore(address, std::move(*socket)));
      Hello named = hello;
      named.name = address.name;
      auto reply = client->exchange(encode_hello(0, named), 0, deadline);
      if (reply.ok() && reply->status.ok()) return client;
      // A server of an earlier world may close instead of answering, or say that it is one: the next one comes.
      failure = reply.ok() ? reply->status : reply.status();
    } else {
      failure = socket.status();
    }
    // What was in the way before says more than that there was no time for another attempt.
    const bool late = failure.code() == StatusCode::deadline_exceeded && !last.ok();
    if (failure.code() != StatusCode::unavailable && !late) return failure;
    if (!late) last = std::move(failure);
    if (late || deadline.remaining_ns() <= pause.count()) {
      return Status(StatusCode::deadline_exceeded,
                    "nobody serves " + to_string(address) +
                        " before the deadline; last attempt: " + last.message());
    }
    if (!told && base::now_ns() > begun_ns + kToldAfter.count()) {
      told = true;
      base::log_warn("nobody serves {} yet, which is tried until the deadline; last attempt: {}",
                     to_string(address), last.message());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, told ? kLateRetryPause : kRetryPauseMax);
  }
}

void SocketStore::say_goodbye(base::Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return;
  const std::uint64_t id = ++last_id_;
  static_cast<void>(exchange(encode_goodbye(id), id, deadline));
}

void SocketStore::hang_up(const Status& why) {
  const std::lock_guard lock(mutex_);
  ::shutdown(socket_.number(), SHUT_RDWR);  // First: there may be no memory for the reason.
  if (broken_.ok()) broken_ = why;
}

Result<Address> SocketStore::local_address() {
  const std::lock_guard lock(mutex_);
  return store::local_address(socket_);
}

Result<Reply> SocketStore::perform(const Request& request, base::Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  const std::uint64_t id = ++last_id_;
  const auto reply = [&] {
    try {
      return exchange(encode_request(id, request), id, deadline);
    } catch (...) {  // There is no memory: of what was received some may be lost.
      broken_ = Status(StatusCode::io_error, "no memory");
      throw;
    }
  }();
  if (reply.status().code() == StatusCode::deadline_exceeded && broken_.ok() && request.waits()) {
    return key_deadline_status(request.key);
  }
  return reply;
}

Result<Reply> SocketStore::exchange(const std::string& frame, std::uint64_t id,
                                    base::Deadline deadline) {
  if (Status status = send_all(socket_, frame, deadline, name_); !status.ok()) {
    broken_ = status;  // A part of the frame may be on its way: nothing can follow it.
    return status;
  }
  const auto strange = [&](const Status& status) {
    return Status(status.code(), name_ + " is none, or of another version: " + status.message());
  };
  for (;;) {
    if (input_.size() >= kFrameHeaderBytes) {
      const std::string_view input = input_;
      const auto length = decode_frame_header(input.substr(0, kFrameHeaderBytes));
      if (!length.ok()) return broken_ = strange(length.status());
      if (input.size() - kFrameHeaderBytes >= length.value()) {
        auto decoded = decode_reply(input.substr(kFrameHeaderBytes, length.value()));
        if (!decoded.ok()) return broken_ = strange(decoded.status());
        input_.erase(0, kFrameHeaderBytes + length.value());
        if (decoded->id == id) return std::move(decoded->reply);
        if (!deadline.expired()) continue;  // The answer to a call that gave up.
      }
    }
    if (Status status = receive_more(deadline); !status.ok()) return status;
  }
}

Status SocketStore::receive_more(base::Deadline deadline) {
  pollfd entry{socket_.number(), POLLIN, 0};
  if (poll_until({&entry, 1}, deadline) == 0) {
    return Status(StatusCode::deadline_exceeded, name_ + " did not answer before the deadline");
  }
  std::array<char, 16384> buffer;
  const ssize_t got = ::recv(socket_.number(), buffer.data(), buffer.size(), 0);
  if (got > 0) {
    input_.append(buffer.data(), static_cast<std::size_t>(got));
    return {};
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  const int error = errno;
  broken_ = got == 0 ? Status(StatusCode::unavailable, name_ + " closed the connection")
                     : base::system_status(error, name_);
  return broken_;
}

}  // namespace sluice::store
