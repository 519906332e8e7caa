// SPDX-License-Identifier: MIT
#include "bootstrap/spanning_group.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "bootstrap/agreement.hpp"
#include "bootstrap/process_group.hpp"
#include "transport/network.hpp"

namespace sluice::bootstrap {
namespace {

routing::NodeMap map_of(const std::vector<std::string>& names) {
  std::map<std::string, int> numbers;
  std::vector<int> rank_to_node;
  for (const std::string& name : names) {
    rank_to_node.push_back(
        numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return routing::NodeMap(rank_to_node);
}

// How long rank 0 serves ranks that have not left yet, when it leaves.
constexpr std::chrono::seconds kGoodbye{5};

}  // namespace

SpanningGroup::SpanningGroup(int rank, routing::NodeMap nodes, std::string host)
    : rank_(rank),
      nodes_(std::move(nodes)),
      host_(std::move(host)),
      elsewhere_(std::make_unique<memory::ControlPage>()),
      everyone_(static_cast<std::size_t>(nodes_.ranks())) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

SpanningGroup::~SpanningGroup() {
  if (!process_.forked()) return;
  // The server's thread and the connections are the parent's: neither is stopped from here.
  static_cast<void>(server_.release());
  static_cast<void>(store_.release());
}

Result<std::unique_ptr<Group>> SpanningGroup::create(int rank,
                                                     const std::vector<std::string>& node_names,
                                                     const Gather& gather, const std::string& host,
                                                     base::Deadline deadline) {
  std::unique_ptr<SpanningGroup> group(new SpanningGroup(rank, map_of(node_names), host));
  if (Status status = group->connect(gather, deadline); !status.ok()) return status;
  auto network = transport::network_of(base::Environment::read());
  if (Status status = group->agree(network.status(), deadline); !status.ok()) return status;
  group->network_ = std::move(network).value();
  if (Status status = group->join_node(deadline); !status.ok()) return status;
  return std::unique_ptr<Group>(std::move(group));
}

// Rank 0 tells in the gather where it serves the store, or why it cannot.
Status SpanningGroup::connect(const Gather& gather, base::Deadline deadline) {
  Status status;
  std::string served;
  if (rank_ == 0) {
    store::Address address;
    address.host = host_;
    auto server = store::SocketStoreServer::start(address, size());
    status = server.status();
    if (server.ok()) {
      server_ = std::move(server).value();
      served = store::to_string(server_->address());
    }
  }
  auto gathered = gather(status.ok() ? "at " + served : encode_status(status));
  if (!gathered.ok()) return gathered.status();
  const std::string& first = gathered->front();
  if (!first.starts_with("at ")) return agreed_status(std::vector<Status>{decode_status(first)});
  auto address = store::parse_address(std::string_view(first).substr(3));
  if (!address.ok()) return address.status();
  const store::Hello hello{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(size())};
  auto client = store::SocketStore::connect(*address, hello, deadline);
  if (!client.ok()) return client.status();
  store_ = std::move(client).value();
  return {};
}

Status SpanningGroup::join_node(base::Deadline deadline) {
  const int node = nodes_.node_of(rank_);
  const auto here = nodes_.ranks_of(node);
  const std::vector<int> members(here.begin(), here.end());
  int gathers = 0;
  auto group = ProcessGroup::create(
      nodes_.place_of(rank_), static_cast<int>(members.size()),
      [&](std::string_view blob) {
        return gather_among(members,
                            "node/" + std::to_string(node) + "/" + std::to_string(gathers++), blob,
                            deadline);
      },
      deadline);
  if (Status status = agree(group.status(), deadline); !status.ok()) return status;
  node_ = std::move(group).value();
  return {};
}

Result<std::vector<std::string>> SpanningGroup::gather_among(const std::vector<int>& members,
                                                             const std::string& key,
                                                             std::string_view blob,
                                                             base::Deadline deadline) {
  const auto key_of = [&](int rank) { return key + "/" + std::to_string(rank); };
  if (Status status = store_->set(key_of(rank_), blob, deadline); !status.ok()) return status;
  std::vector<std::string> blobs;
  for (const int member : members) {
    auto theirs = store_->get(key_of(member), deadline);
    if (!theirs.ok()) {
      if (theirs.status().code() != StatusCode::deadline_exceeded) return theirs.status();
      return Status(StatusCode::deadline_exceeded,
                    "collective call of a world of " + std::to_string(size()) + " ranks: rank " +
                        std::to_string(member) + " did not come before the deadline");
    }
    blobs.push_back(std::move(*theirs));
  }
  return blobs;
}

Result<std::vector<std::string>> SpanningGroup::all_gather(std::string_view blob,
                                                           base::Deadline deadline) {
  if (Status status = check_joined(process_, rank_); !status.ok()) return status;
  if (left_) {
    return Status(StatusCode::failed_precondition,
                  "rank " + std::to_string(rank_) + " has left this world and calls a collective");
  }
  const std::uint64_t number = gathers_++;
  auto blobs = gather_among(everyone_, "all/" + std::to_string(number), blob, deadline);
  // Whoever is in the gather after it has read everything of the one before.
  if (blobs.ok() && number > 0) {
    auto erased =
        store_->erase("all/" + std::to_string(number - 1) + "/" + std::to_string(rank_), deadline);
    if (!erased.ok()) return erased.status();
  }
  return blobs;
}

Result<memory::SharedRegion> SpanningGroup::share(std::size_t bytes, bool committed,
                                                  base::Deadline deadline) {
  auto here = node_->share(bytes, committed, deadline);
  if (Status status = agree(here.status(), deadline); !status.ok()) return status;
  std::vector<memory::SharedRegion::Part> parts(everyone_.size());
  for (const int rank : nodes_.ranks_of(nodes_.node_of(rank_))) {
    const int place = nodes_.place_of(rank);
    parts[static_cast<std::size_t>(rank)] = {here->base(place), here->bytes(place)};
  }
  auto owner = std::make_shared<memory::SharedRegion>(std::move(here).value());
  return memory::SharedRegion(std::move(parts), [owner]() mutable { owner.reset(); });
}

Result<std::vector<base::Descriptor>> SpanningGroup::exchange_files(
    const Result<base::Descriptor>& /*mine*/, base::Deadline /*deadline*/) {
  return Status(StatusCode::unimplemented, "files cannot be handed to ranks of other nodes");
}

memory::ControlPage& SpanningGroup::control(int rank) noexcept {
  return nodes_.together(rank, rank_) ? node_->control(nodes_.place_of(rank)) : *elsewhere_;
}

bool SpanningGroup::is_dead(int rank) const noexcept {
  return nodes_.together(rank, rank_) && node_->is_dead(nodes_.place_of(rank));
}

Result<std::unique_ptr<Group>> SpanningGroup::split(int color, int key, base::Deadline deadline) {
  const std::uint64_t number = gathers_;
  auto wished = all_gather(encode_split_wish({color, key}), deadline);
  if (!wished.ok()) return wished.status();
  if (color < 0) return no_group_for(color);
  auto wishes = decode_split_wishes(*wished);
  if (!wishes.ok()) return wishes.status();
  const std::vector<int> members = split_members(*wishes, color);
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  int gathers = 0;
  const Gather among_members = [&](std::string_view blob) {
    return gather_among(members,
                        "split/" + std::to_string(number) + "/" + std::to_string(color) + "/" +
                            std::to_string(gathers++),
                        blob, deadline);
  };
  return ProcessGroup::create(static_cast<int>(place), static_cast<int>(members.size()),
                              among_members, deadline, this_host(), host_);
}

Status SpanningGroup::leave(base::Deadline deadline) {
  if (Status status = check_joined(process_, rank_); !status.ok()) return status;
  left_ = true;
  Status status = node_->leave(deadline);
  store_->say_goodbye(deadline);
  // Others may still read what the last collective call brought.
  if (server_ != nullptr) {
    const auto at_most = base::Deadline::after(kGoodbye);
    const bool sooner = !deadline.is_never() && deadline.at_ns() < at_most.at_ns();
    const Status served = server_->wait_for_goodbyes(sooner ? deadline : at_most);
    if (!served.ok()) base::log_info("rank 0 serves the store no longer: {}", served.message());
  }
  return status;
}

}  // namespace sluice::bootstrap
