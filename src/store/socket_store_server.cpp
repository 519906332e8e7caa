// SPDX-License-Identifier: MIT
#include "store/socket_store_server.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/background_thread.hpp"
#include "base/log.hpp"
#include "base/system_error.hpp"
#include "store/server_loop.hpp"
#include "store/socket.hpp"

namespace sluice::store {

Result<std::unique_ptr<SocketStoreServer>> SocketStoreServer::start(const Address& address,
                                                                    int clients) {
  Address at = address;
  if (address.kind == Address::Kind::tcp && is_only_here(address.host)) {
    at.host = "0.0.0.0";
    base::log_info(
        "\"{}\" is the name of this host alone here: the store is served at all addresses",
        address.host);
  }
  auto listener = listen_at(at);
  if (!listener.ok()) return listener.status();
  Address served = address;
  if (address.kind == Address::Kind::tcp && address.port == 0) {
    auto port = bound_port(*listener);
    if (!port.ok()) return port.status();
    served.port = *port;
  }
  base::Descriptor stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.open()) return base::system_status(errno, "cannot create an eventfd");
  try {
    return std::unique_ptr<SocketStoreServer>(
        new SocketStoreServer(std::move(served), std::move(*listener), std::move(stop), clients));
  } catch (const std::system_error& error) {
    return Status(StatusCode::io_error,
                  std::string("cannot start the store's thread: ") + error.what());
  }
}

SocketStoreServer::SocketStoreServer(Address address, base::Descriptor listener,
                                     base::Descriptor stop, int clients)
    : address_(std::move(address)), attendance_(clients), stop_(std::move(stop)) {
  thread_ = base::start_background_thread(
      "sluice-store", [this, clients, socket = std::move(listener)]() mutable {
        try {
          ServerLoop(std::move(socket), address_, clients, attendance_).run(stop_);
        } catch (const std::exception& error) {
          // Its connections close with it: clients get `unavailable`.
          base::log_error("the store at {} ended: {}", to_string(address_), error.what());
        }
      });
}

SocketStoreServer::~SocketStoreServer() {
  const std::uint64_t one = 1;
  // An eventfd at 0 takes the number without blocking and cannot refuse it.
  while (::write(stop_.number(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

}  // namespace sluice::store
