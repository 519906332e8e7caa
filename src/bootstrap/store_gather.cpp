// SPDX-License-Identifier: MIT
#include "bootstrap/store_gather.hpp"

#include <memory>

#include "base/log.hpp"
#include "bootstrap/gather_keys.hpp"
#include "store/socket_store.hpp"
#include "store/socket_store_server.hpp"

namespace sluice::bootstrap {
namespace {

std::string key_of(const char* what, int rank) {
  return std::string(what) + std::to_string(rank);
}

}  // namespace

Result<std::vector<std::string>> gather_through(store::Store& store, int rank, int size,
                                                std::string_view blob, base::Deadline deadline) {
  if (Status status = store.set(key_of("blob/", rank), blob, deadline); !status.ok()) {
    return status;
  }
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) keys.push_back(key_of("blob/", peer));
  return gather_keys(store, keys, deadline, did_not_join);
}

Result<std::vector<std::string>> gather_at(const store::Address& address, int rank, int size,
                                           std::string_view blob, base::Deadline deadline) {
  if (size == 1) return std::vector<std::string>{std::string(blob)};
  std::unique_ptr<store::SocketStoreServer> server;
  if (rank == 0) {
    auto started = store::SocketStoreServer::start(address, size);
    if (!started.ok()) return started.status();
    server = std::move(*started);
  }
  const store::Hello hello{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size)};
  auto client = store::SocketStore::connect(address, hello, deadline);
  if (!client.ok()) return client.status();
  auto blobs = gather_through(**client, rank, size, blob, deadline);
  if (!blobs.ok()) return blobs;  // Without a goodbye: the others need not wait for this rank.
  (*client)->say_goodbye(deadline);
  if (server != nullptr) {
    // This rank has all blobs: whoever is lost now will be missed when the mesh connects.
    const Status status = server->wait_for_goodbyes(deadline);
    if (!status.ok()) base::log_info("the rendezvous of rank 0 ends early: {}", status.message());
  }
  return blobs;
}

}  // namespace sluice::bootstrap
