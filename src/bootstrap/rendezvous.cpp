// SPDX-License-Identifier: MIT
#include "bootstrap/rendezvous.hpp"

#include <cstdint>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/store_gather.hpp"

namespace sluice::bootstrap {

Rendezvous::~Rendezvous() {
  if (client_ == nullptr) return;
  client_->say_goodbye(deadline_);
  if (server_ == nullptr) return;
  // This rank has all blobs: whoever is lost now is missed by the mesh.
  const Status status = server_->wait_for_goodbyes(deadline_);
  if (!status.ok()) base::log_info("the rendezvous of rank 0 ends early: {}", status.message());
}

Status Rendezvous::open() {
  if (rank_ == 0) {
    auto started = store::SocketStoreServer::start(address_, size_);
    if (!started.ok()) return started.status();
    server_ = std::move(started).value();
  }
  const store::Hello hello{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(size_)};
  auto client = store::SocketStore::connect(address_, hello, deadline_);
  if (!client.ok()) return client.status();
  client_ = std::move(client).value();
  return {};
}

Result<std::vector<std::string>> Rendezvous::gather(std::string_view blob) {
  if (size_ == 1) return std::vector<std::string>{std::string(blob)};
  if (gathers_ == 0) {
    if (Status status = open(); !status.ok()) return status;
  }
  auto blobs = gather_through(*client_, gathers_++, rank_, size_, blob, deadline_);
  if (!blobs.ok()) client_.reset();  // Without a goodbye: the others learn that this rank is gone.
  return blobs;
}

}  // namespace sluice::bootstrap
