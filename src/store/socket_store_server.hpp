// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "sluice/status.hpp"
#include "store/address.hpp"
#include "store/attendance.hpp"

namespace sluice::store {

/// Serves a store to the SocketStores of other processes, on a thread of its own. A connection that
/// sends anything but this protocol is closed, and nobody else notices. An abstract socket serves
/// only processes of the same user; a tcp port serves whoever reaches it.
class SocketStoreServer {
 public:
  /// `clients` > 0: exactly these many clients are served, numbered from 0, each once; when the
  /// last one has come, nobody listens at the address any more, so that the next world may use it.
  /// If one ends without SocketStore::say_goodbye, waits of the others end with `unavailable`.
  /// 0: anybody, until destruction.
  static Result<std::unique_ptr<SocketStoreServer>> start(const Address& address, int clients);

  /// Closes all connections; local and prompt.
  ~SocketStoreServer();
  SocketStoreServer(const SocketStoreServer&) = delete;
  SocketStoreServer& operator=(const SocketStoreServer&) = delete;

  /// Counted clients only: until all of them have said goodbye, one is lost, or the deadline
  /// passed.
  Status wait_for_goodbyes(base::Deadline deadline) { return attendance_.wait(deadline); }

  /// Counted clients only: until all of them have said goodbye or are lost. False: not before the deadline.
  bool wait_until_gone(base::Deadline deadline) { return attendance_.wait_until_gone(deadline); }

  /// Where it is served: as given, with the port that was taken if 0 was given.
  const Address& address() const noexcept { return address_; }

 private:
  SocketStoreServer(Address address, base::Descriptor listener, base::Descriptor stop, int clients);

  Address address_;
  Attendance attendance_;
  base::Descriptor stop_;  // An eventfd: written once, by the destructor.
  std::thread thread_;
};

}  // namespace sluice::store
