// SPDX-License-Identifier: MIT
#include "bootstrap/rendezvous.hpp"

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/store_gather.hpp"

namespace sluice::bootstrap {
namespace {

// Others may still read what the last gather brought.
constexpr std::chrono::seconds kReaders{5};

}  // namespace

void Rendezvous::end(bool joined) {
  if (client_ == nullptr) return;
  const auto last = base::Deadline::after(kReaders);
  client_->say_goodbye(last);
  if (server_ == nullptr || joined) return;
  const Status status = server_->wait_for_goodbyes(last);
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
