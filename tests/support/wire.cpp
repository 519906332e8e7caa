// SPDX-License-Identifier: MIT
#include "support/wire.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/system_error.hpp"
#include "support/random.hpp"

namespace sluice::support {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

// What one direction of a connection holds back at most: beyond it the sender has to wait, as TCP does.
constexpr std::size_t kHeldBytesMax = std::size_t{4} << 20;
// And of a narrow one, a 20th of what passes in a second.
constexpr std::uint64_t kHeldPerSecond = 20;
constexpr int kNarrowBuffer = 128 << 10;
// How long what was taken is still passed on at the end.
constexpr std::chrono::seconds kLastMost{2};

sockaddr_in local(std::uint16_t port) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

base::Descriptor new_socket(int flags) {
  return base::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

// The wire's delays are all there are.
void send_at_once(const base::Descriptor& socket) {
  const int one = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

base::Descriptor connect_to(std::uint16_t port) {
  // On this machine a connection is made, or refused, at once.
  base::Descriptor socket = new_socket(0);
  const sockaddr_in address = local(port);
  if (!socket.open() || ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address),
                                  sizeof(address)) != 0) {
    return {};
  }
  send_at_once(socket);
  return socket;
}

/// What one side of a connection has sent and the other has not got yet.
class Direction {
 public:
  Direction(const Weather& weather, std::uint64_t seed)
      : weather_(weather),
        random_(seed),
        held_max_(weather.bytes_per_second == 0
                      ? kHeldBytesMax
                      : std::min(kHeldBytesMax, weather.bytes_per_second / kHeldPerSecond)) {}

  bool takes_more() const noexcept { return !ended_ && held_ < held_max_; }
  /// Whether it was lost.
  bool take(std::string_view bytes, Time now) {
    if (weather_.dead != nullptr && *weather_.dead) dead_ = true;
    if (dead_) return true;
    Time due = std::max(now + weather_.delay, last_due_);
    bool lost = false;
    if (random_.below(1024) < weather_.losses) {
      lost = true;
      due += weather_.stall_min + std::chrono::microseconds(random_.below(
                                      (weather_.stall_max - weather_.stall_min).count() + 1));
    }
    if (weather_.bytes_per_second > 0) {
      due += std::chrono::nanoseconds(bytes.size() * 1'000'000'000U / weather_.bytes_per_second);
    }
    last_due_ = due;
    held_ += bytes.size();
    pieces_.push_back({due, std::string(bytes)});
    return lost;
  }
  void end() noexcept { ended_ = true; }
  /// All that was sent has been passed on, and no more comes.
  bool over() const noexcept { return ended_ && pieces_.empty(); }

  /// When there is something to pass on; the end of time if there is nothing.
  Time due() const noexcept { return pieces_.empty() ? Time::max() : pieces_.front().due; }
  /// Passes on what is due; false if the other side is gone.
  bool pass_on(const base::Descriptor& socket, Time now) {
    blocked_ = false;
    while (due() <= now) {
      Piece& piece = pieces_.front();
      const ssize_t sent = ::send(socket.number(), piece.bytes.data() + sent_,
                                  piece.bytes.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        blocked_ = errno == EAGAIN;
        return blocked_;
      }
      sent_ += static_cast<std::size_t>(sent);
      if (sent_ < piece.bytes.size()) continue;
      held_ -= piece.bytes.size();
      sent_ = 0;
      pieces_.pop_front();
    }
    return true;
  }
  /// The other side does not take what is due.
  bool blocked() const noexcept { return blocked_; }

 private:
  struct Piece {
    Time due;
    std::string bytes;
  };

  const Weather weather_;
  Random random_;
  const std::size_t held_max_;
  std::deque<Piece> pieces_;
  std::size_t held_ = 0;
  std::size_t sent_ = 0;  // Of the first piece.
  Time last_due_{};
  bool dead_ = false;
  bool ended_ = false;
  bool blocked_ = false;
};

struct Connection {
  std::array<base::Descriptor, 2> sockets;
  std::array<Direction, 2> directions;  // [i]: from socket i to the other.
  bool gone = false;
};

struct Port {
  base::Descriptor listener;
  std::uint16_t to = 0;
  Weather weather;
};

}  // namespace

/// What the wire's thread does.
class Wire::Loop {
 public:
  Loop(Wire& wire, std::uint64_t seed) : wire_(wire), seed_(seed) {}

  void add(Port port) {
    const std::lock_guard lock(mutex_);
    new_ports_.push_back(std::move(port));
  }
  void stop() noexcept { stopped_ = true; }  // Pairs with the load in run().

  void run() {
    while (!stopped_) {
      take_new_ports();
      wait();
      for (Port& port : ports_) accept(port);
      carry();
    }
    // What whoever has closed sent last is under way, and arrives.
    ports_.clear();
    const Time end = Clock::now() + kLastMost;
    for (carry(); holds_any() && Clock::now() < end; carry()) wait(end);
  }

 private:
  void take_new_ports() {
    const std::lock_guard lock(mutex_);
    for (Port& port : new_ports_) ports_.push_back(std::move(port));
    new_ports_.clear();
  }

  void wait(Time at_most = Time::max()) {
    std::vector<pollfd> entries{{wire_.wake_.number(), POLLIN, 0}};
    for (const Port& port : ports_) entries.push_back({port.listener.number(), POLLIN, 0});
    Time next = at_most;
    for (const Connection& connection : connections_) {
      for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
        const Direction& from = connection.directions[i];
        const Direction& to = connection.directions[1 - i];
        const int events = (from.takes_more() ? POLLIN : 0) | (to.blocked() ? POLLOUT : 0);
        // Without events a hang-up would still be told, again and again.
        if (events != 0) {
          entries.push_back({connection.sockets[i].number(), static_cast<short>(events), 0});
        }
        if (!from.blocked()) next = std::min(next, from.due());
      }
    }
    timespec time{};
    if (next != Time::max()) {
      const auto left = std::max(next - Clock::now(), Clock::duration::zero());
      time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
      time.tv_nsec = (left % std::chrono::seconds(1)).count();
    }
    ::ppoll(entries.data(), entries.size(), next == Time::max() ? nullptr : &time, nullptr);
    if ((entries.front().revents & POLLIN) != 0) {
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t got = ::read(wire_.wake_.number(), &wakes, sizeof(wakes));
    }
  }

  void accept(Port& port) {
    while (true) {
      base::Descriptor from(::accept4(port.listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!from.open()) return;
      send_at_once(from);
      base::Descriptor to = connect_to(port.to);
      if (!to.open()) continue;  // Refused there: refused here.
      const std::uint64_t number = ++accepted_;
      connections_.push_back({{std::move(from), std::move(to)},
                              {Direction(port.weather, Random::of(seed_, number, 0).next()),
                               Direction(port.weather, Random::of(seed_, number, 1).next())}});
    }
  }

  void carry() {
    for (Connection& connection : connections_) carry(connection);
    connections_.remove_if([](const Connection& connection) { return connection.gone; });
  }
  bool holds_any() const {
    return std::any_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
      return std::any_of(connection.directions.begin(), connection.directions.end(),
                         [](const Direction& direction) { return direction.due() != Time::max(); });
    });
  }
  void carry(Connection& connection) {
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      Direction& direction = connection.directions[i];
      receive(connection, i);
      if (!direction.pass_on(connection.sockets[1 - i], Clock::now())) connection.gone = true;
      // Whoever closes is not heard of again: none of those who use the wire closes one half only.
      if (direction.over()) connection.gone = true;
    }
  }

  void receive(Connection& connection, std::size_t from) {
    Direction& direction = connection.directions[from];
    std::array<char, kPieceBytes> buffer;
    while (direction.takes_more()) {
      const ssize_t got =
          ::recv(connection.sockets[from].number(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return direction.end();
      // Before it is passed on: who has got it finds it counted.
      wire_.bytes_ += static_cast<std::uint64_t>(got);
      if (direction.take({buffer.data(), static_cast<std::size_t>(got)}, Clock::now())) {
        ++wire_.losses_;
      }
    }
  }

  Wire& wire_;
  const std::uint64_t seed_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<Port> new_ports_;  // Guarded by mutex_.
  // Of the thread's own.
  std::vector<Port> ports_;
  std::list<Connection> connections_;
  std::uint64_t accepted_ = 0;
};

Result<std::unique_ptr<Wire>> Wire::start(std::uint64_t seed) {
  base::Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.open()) return base::system_status(errno, "cannot create an eventfd");
  return std::unique_ptr<Wire>(new Wire(std::move(wake), seed));
}

Wire::Wire(base::Descriptor wake, std::uint64_t seed)
    : wake_(std::move(wake)), loop_(std::make_unique<Loop>(*this, seed)) {
  thread_ = std::thread([this] { loop_->run(); });
}

Wire::~Wire() {
  loop_->stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof(one));
  thread_.join();
}

Result<std::uint16_t> Wire::lead_to(std::uint16_t port, const Weather& weather) {
  base::Descriptor listener = new_socket(SOCK_NONBLOCK);
  if (!listener.open()) return base::system_status(errno, "cannot create a socket");
  if (weather.bytes_per_second > 0) {
    // The system's buffer, which those that it accepts have too, is no part of a narrow wire. (It has twice as much.)
    const int buffer = kNarrowBuffer;
    ::setsockopt(listener.number(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
  }
  sockaddr_in address = local(0);
  socklen_t bytes = sizeof(address);
  if (::bind(listener.number(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::listen(listener.number(), SOMAXCONN) != 0 ||
      ::getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return base::system_status(errno, "cannot listen on 127.0.0.1");
  }
  loop_->add({std::move(listener), port, weather});
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof(one));
  return ntohs(address.sin_port);
}

}  // namespace sluice::support
