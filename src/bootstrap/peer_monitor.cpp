// SPDX-License-Identifier: MIT
#include "bootstrap/peer_monitor.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/background_thread.hpp"
#include "base/log.hpp"
#include "base/system_error.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {

Result<std::unique_ptr<PeerMonitor>> PeerMonitor::start(const Mesh& mesh,
                                                        const memory::SharedRegion& pages) {
  base::Descriptor stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.open()) return base::system_status(errno, "cannot create an eventfd");
  std::unique_ptr<PeerMonitor> monitor(new PeerMonitor(mesh, pages, std::move(stop)));
  try {
    monitor->thread_ =
        base::start_background_thread("sluice-monitor", [self = monitor.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::io_error,
                  std::string("cannot start the thread that watches peers: ") + error.what());
  }
  return monitor;
}

PeerMonitor::PeerMonitor(const Mesh& mesh, const memory::SharedRegion& pages, base::Descriptor stop)
    : mesh_(mesh),
      pages_(pages),
      stop_(std::move(stop)),
      entries_{{stop_.number(), POLLIN, 0}},
      process_(::getpid()) {
  for (const Mesh::Peer& peer : mesh.peers()) {
    // Data is none of the monitor's business: it asks for the end of the connection only.
    entries_.push_back({peer.socket.number(), POLLRDHUP, 0});
    entries_.push_back({peer.process.number(), POLLIN, 0});
  }
}

PeerMonitor::~PeerMonitor() {
  if (!thread_.joinable()) return;
  if (process_ != ::getpid()) {  // A forked child: the thread exists in the parent only.
    thread_.detach();
    return;
  }
  const std::uint64_t one = 1;
  // An eventfd at 0 takes the number without blocking and cannot refuse it.
  while (::write(stop_.number(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void PeerMonitor::run() {
  for (;;) {
    store::poll_until(entries_, base::Deadline::never());
    if (entries_[0].revents != 0) return;
    for (int peer = 0; peer < mesh_.size(); ++peer) {
      pollfd& connection = entries_[1 + 2 * static_cast<std::size_t>(peer)];
      pollfd& process = entries_[2 + 2 * static_cast<std::size_t>(peer)];
      if (connection.revents == 0 && process.revents == 0) continue;
      if (process.revents != 0) {
        // Pairs with the acquire load in has_ended().
        ended_[static_cast<std::size_t>(peer)].store(true, std::memory_order_release);
      }
      // poll() skips them from now on; a connection of which one half has ended, when the other one has.
      const bool hung_up = (connection.revents & (POLLHUP | POLLERR)) != 0;
      const bool open = connection.fd >= 0;
      if ((open || process.revents != 0) && note_end(peer, hung_up)) connection = {-1, 0, 0};
      connection.events = 0;
      if (process.revents != 0) process = {-1, 0, 0};
    }
  }
}

// Whether nothing more is to be learnt from the connection.
bool PeerMonitor::note_end(int peer, bool hung_up) {
  GroupPages& theirs = pages_of(pages_, peer);
  GroupPages& mine = pages_of(pages_, mesh_.rank());
  // Pairs with the release stores of ProcessGroup, in leave() and by Mesh::give_up, which come before the connection's end.
  const auto state =
      static_cast<memory::RankState>(theirs.control.state.load(std::memory_order_acquire));
  if (state == memory::RankState::gave_up && !has_ended(peer)) {
    // Then both halves of the connection have ended: that of the peer's group, unless one of them is this rank's own doing.
    // (Pairs with its release stores, which come before that.)
    const bool own_half = mine.control.state.load(std::memory_order_acquire) ==
                          static_cast<std::uint32_t>(memory::RankState::alive);
    if (!(hung_up && own_half)) {
      base::log_info("rank {}: rank {} makes no more collective calls", mesh_.rank(), peer);
      return !own_half;
    }
  }
  if (state == memory::RankState::left) {
    theirs.leave_seen_by[static_cast<std::size_t>(mesh_.rank())].store(1,
                                                                       std::memory_order_release);
    theirs.control.doorbell.ring();
    base::log_debug("rank {}: rank {} has left", mesh_.rank(), peer);
  } else if (!is_dead(peer)) {
    // Pairs with the acquire load in is_dead().
    dead_[static_cast<std::size_t>(peer)].store(true, std::memory_order_release);
    base::log_info("rank {}: rank {} has ended without leaving", mesh_.rank(), peer);
  }
  mine.control.doorbell.ring();
  return true;
}

}  // namespace sluice::bootstrap
