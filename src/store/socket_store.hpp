// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/descriptor.hpp"
#include "store/address.hpp"
#include "store/protocol.hpp"
#include "store/store.hpp"

namespace sluice::store {

/// A client of a SocketStoreServer. Calls of several threads take turns, a waiting get included.
class SocketStore final : public Store {
 public:
  /// Tries again until the deadline while nobody serves the address yet. The resolver of host names
  /// keeps its own time. `hello` says who comes (see SocketStoreServer::start).
  static Result<std::unique_ptr<SocketStore>> connect(const Address& address, const Hello& hello,
                                                      base::Deadline deadline);

  ~SocketStore() override = default;
  SocketStore(const SocketStore&) = delete;
  SocketStore& operator=(const SocketStore&) = delete;

  /// Tells a server that counts its clients that this one is done; the last call. The server may
  /// end at any time after it, so an answer that does not come is no failure.
  void say_goodbye(base::Deadline deadline);
  /// As if this client had ended, so that those who wait for it learn of it: calls give `why` from now on.
  void hang_up(const Status& why);
  /// tcp: the address of this machine by which it reaches the server.
  Result<Address> local_address();

 protected:
  Result<Reply> perform(const Request& request, base::Deadline deadline) override;

 private:
  SocketStore(const Address& address, base::Descriptor socket);
  Result<Reply> exchange(const std::string& frame, std::uint64_t id, base::Deadline deadline);
  Status receive_more(base::Deadline deadline);

  const std::string name_;
  std::mutex mutex_;
  // Guarded by mutex_.
  base::Descriptor socket_;
  std::string input_;  // Survives a deadline, so that the next call finds the frames' borders.
  std::uint64_t last_id_ = 0;
  Status broken_;
};

}  // namespace sluice::store
