// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"
#include "store/address.hpp"
#include "store/socket_store.hpp"
#include "store/socket_store_server.hpp"

namespace sluice::bootstrap {

/// Where ranks meet that know an address: rank 0 serves a store there while they join.
class Rendezvous {
 public:
  Rendezvous(const store::Address& address, int rank, int size, base::Deadline deadline)
      : address_(address), rank_(rank), size_(size), deadline_(deadline) {}
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Collective: one blob of every rank, in rank order. A rank that ends, also between two gathers, ends it with
  /// `unavailable`.
  Result<std::vector<std::string>> gather(std::string_view blob);
  /// The last call: this rank has read all it needs; without it, who still waits in a gather learns that this rank is gone.
  /// `joined`: and so have all others. If not, rank 0 serves them for up to five seconds more.
  void end(bool joined);

 private:
  Status open();

  const store::Address address_;
  const int rank_;
  const int size_;
  const base::Deadline deadline_;
  int gathers_ = 0;
  std::unique_ptr<store::SocketStoreServer> server_;  // rank 0; ends behind its client.
  std::unique_ptr<store::SocketStore>
      client_;  // Null until the first gather, and when one has failed.
};

}  // namespace sluice::bootstrap
