// SPDX-License-Identifier: MIT
#include "bootstrap/served_store.hpp"

#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "bootstrap/agreement.hpp"
#include "bootstrap/host_identity.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

// How long rank 0 serves ranks that have not left yet, when it leaves.
constexpr std::chrono::seconds kGoodbye{5};
// And when its world is destroyed.
constexpr std::chrono::seconds kLast{1};

}  // namespace

Result<std::shared_ptr<WorldStore>> ServedStore::open(int rank, int size, const Gather& gather,
                                                      const std::string& host,
                                                      base::Deadline deadline) {
  std::shared_ptr<ServedStore> opened(new ServedStore);
  Status status;
  std::string served;
  if (rank == 0) {
    store::Address address;
    address.host = host;
    Result<std::string> name = store::random_name();
    if (name.ok()) address.name = std::move(name).value();
    auto server = name.ok() ? store::SocketStoreServer::start(address, size) : name.status();
    status = server.status();
    if (server.ok()) {
      opened->server_ = std::move(server).value();
      served = store::to_string(opened->server_->address());
    }
  }
  auto gathered = gather(status.ok() ? "at " + served : encode_status(status));
  if (!gathered.ok()) return gathered.status();
  const std::string& first = gathered->front();
  if (!first.starts_with("at ")) return agreed_status(std::vector<Status>{decode_status(first)});
  auto address = store::parse_address(std::string_view(first).substr(3));
  if (!address.ok()) return address.status();
  opened->only_here_ = store::is_only_here(address->host);
  const store::Hello hello{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size)};
  auto client = store::SocketStore::connect(*address, hello, deadline);
  auto outcomes = gather(encode_status(client.status()));
  if (!outcomes.ok()) return outcomes.status();
  if (status = agreed_status(*outcomes); !status.ok()) return status;
  opened->client_ = std::move(client).value();
  return std::shared_ptr<WorldStore>(std::move(opened));
}

// What rank 0 has read last, as why a communicator could not be made, others may not have read yet.
ServedStore::~ServedStore() {
  client_.reset();
  if (server_ != nullptr) static_cast<void>(server_->wait_until_gone(base::Deadline::after(kLast)));
}

Status ServedStore::set(const std::string& key, std::string_view value, base::Deadline deadline) {
  return client_->set(key, value, deadline);
}

Result<std::string> ServedStore::get(const std::string& key, base::Deadline deadline) {
  return client_->get(key, deadline);
}

Result<std::vector<std::string>> ServedStore::get_all(std::span<const std::string> keys,
                                                      base::Deadline deadline) {
  return client_->get_all(keys, deadline);
}

Status ServedStore::erase(const std::string& key, base::Deadline deadline) {
  return client_->erase(key, deadline).status();
}

std::string ServedStore::own_host() const {
  if (only_here_) return routed_address();
  const auto address = client_->local_address();
  return address.ok() ? address->host : routed_address();
}

// Its own rank 0, which may be on another machine than this world's, serves another one.
StorePlace ServedStore::part(const std::string& /*name*/, int /*rank*/, int /*size*/) const {
  return {own_host(), nullptr};
}

// Those who wait for this rank have deadlines of their own, and learn of ends from the server.
void ServedStore::give_up(const Status& why) {
  if (why.code() == StatusCode::deadline_exceeded || why.code() == StatusCode::unavailable) return;
  client_->hang_up(why);
}

void ServedStore::watch(std::function<std::optional<int>()> /*find_lost*/) {}

void ServedStore::leave(const std::vector<std::string>& /*left_behind*/, base::Deadline deadline) {
  client_->say_goodbye(deadline);
  // Others may still read what the last collective call brought.
  if (server_ == nullptr) return;
  const auto at_most = base::Deadline::after(kGoodbye);
  const bool sooner = !deadline.is_never() && deadline.at_ns() < at_most.at_ns();
  const Status served = server_->wait_for_goodbyes(sooner ? deadline : at_most);
  if (!served.ok()) base::log_info("rank 0 serves the store no longer: {}", served.message());
}

void ServedStore::disown() noexcept {
  static_cast<void>(server_.release());
  static_cast<void>(client_.release());
}

}  // namespace sluice::bootstrap
