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
  /// Unless a gather has failed, the others need not wait for this rank any more; and rank 0 returns when every rank has
  /// read all it needs, one is lost, or the deadline has passed.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Collective: one blob of every rank, in rank order. A rank that ends, also between two gathers, ends it with
  /// `unavailable`.
  Result<std::vector<std::string>> gather(std::string_view blob);

 private:
  Status open();

  const store::Address address_;
  const int rank_;
  const int size_;
  const base::Deadline deadline_;
  int gathers_ = 0;
  std::unique_ptr<store::SocketStoreServer> server_;  // rank 0
  std::unique_ptr<store::SocketStore>
      client_;  // Null until the first gather, and when one has failed.
};

}  // namespace sluice::bootstrap
