// SPDX-License-Identifier: MIT
#include "bootstrap/spanning_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/environment.hpp"
#include "bootstrap/agreement.hpp"
#include "bootstrap/gather_keys.hpp"
#include "bootstrap/host_identity.hpp"
#include "bootstrap/mesh.hpp"
#include "bootstrap/process_group.hpp"
#include "bootstrap/served_store.hpp"
#include "store/store.hpp"
#include "transport/network.hpp"
#include "transport/own_address.hpp"

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

// For which a world waits for lines at most when it is joined: whom none comes to be with does without.
constexpr std::chrono::nanoseconds kLinesTied = std::chrono::seconds(2);

// Of a blob, in one value of the store.
constexpr std::size_t kPartBytes = store::kValueBytesMax - sizeof(std::uint64_t);

std::string first_value(std::string_view blob) {
  const std::uint64_t length = blob.size();
  std::string value(sizeof(length), '\0');
  std::memcpy(value.data(), &length, sizeof(length));  // x86 and ARM: little-endian
  return value.append(blob.substr(0, kPartBytes));
}

std::uint64_t take_length(std::string& value) {
  std::uint64_t length = 0;
  std::memcpy(&length, value.data(), std::min(sizeof(length), value.size()));
  value.erase(0, sizeof(length));
  return length;
}

bool share_loopback(const std::vector<std::string>& node_names) {
  return std::ranges::all_of(node_names, [&](const std::string& name) {
    return network_of_node(name) == network_of_node(node_names.front());
  });
}

// Where SLUICE_NETWORK_ADDRESS says that others reach this machine; nothing where they do not.
std::optional<std::string> told_address(const base::Environment& environment, bool all_here) {
  const auto& told = environment.get(base::Variable::network_address);
  if (!told || told->empty()) return std::nullopt;
  auto address = transport::own_address(*told);  // If there is none, the network's status says so.
  if (!address.ok() || (transport::is_loopback(*address) && !all_here)) return std::nullopt;
  return *std::move(address);
}

// Where all ranks reach this machine, if nobody has said it: under its name, unless that leads to itself alone (127.0.1.1), or
// at the address from which its routes lead elsewhere.
std::string likely_address(bool all_here) {
  if (all_here) return "127.0.0.1";
  const std::string name = host_name();
  const auto named = transport::own_address(name);
  if (named.ok() && !transport::is_loopback(*named) && !transport::is_link_local(*named)) {
    return name;
  }
  const std::string routed = routed_address();
  return transport::is_loopback(routed) ? name : routed;
}

std::string all_key(std::uint64_t gather) {
  return "all/" + std::to_string(gather);
}

}  // namespace

/// The peers of both kinds.
class SpanningGroup::Both final : public Peers {
 public:
  Both(int rank, routing::NodeMap nodes, std::shared_ptr<Peers> here, Lifelines lines)
      : rank_(rank),
        nodes_(std::move(nodes)),
        here_(std::move(here)),
        lines_(std::move(lines)),
        elsewhere_(std::make_unique<memory::ControlPage>()) {}
  ~Both() override {
    if (!process_.forked()) say_goodbye();
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return nodes_.ranks(); }
  const routing::NodeMap& nodes() const noexcept override { return nodes_; }
  memory::ControlPage& control(int rank) noexcept override {
    return nodes_.together(rank, rank_) ? here_->control(nodes_.place_of(rank)) : *elsewhere_;
  }
  bool is_dead(int rank) const noexcept override {
    return nodes_.together(rank, rank_) && here_->is_dead(nodes_.place_of(rank));
  }
  bool has_ended(int rank) const noexcept override {
    return nodes_.together(rank, rank_) && here_->has_ended(nodes_.place_of(rank));
  }
  bool hung_up(int rank) const noexcept override { return lines_.cut(rank); }
  void say_goodbye() const noexcept { lines_.say_goodbye(); }

 private:
  const base::OwnProcess process_;
  const int rank_;
  const routing::NodeMap nodes_;
  const std::shared_ptr<Peers> here_;
  const Lifelines lines_;
  const std::unique_ptr<memory::ControlPage> elsewhere_;
};

SpanningGroup::SpanningGroup(int rank, routing::NodeMap nodes)
    : rank_(rank), nodes_(std::move(nodes)), everyone_(static_cast<std::size_t>(nodes_.ranks())) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

SpanningGroup::~SpanningGroup() {
  if (process_.forked() && store_ != nullptr) store_->disown();
}

std::shared_ptr<Peers> SpanningGroup::peers() {
  return peers_;
}

Result<std::unique_ptr<Group>> SpanningGroup::create(int rank,
                                                     const std::vector<std::string>& node_names,
                                                     const Gather& gather, const StorePlace& store,
                                                     base::Deadline deadline) {
  std::unique_ptr<SpanningGroup> group(new SpanningGroup(rank, map_of(node_names)));
  const base::Environment environment = base::Environment::read();
  const bool all_here = share_loopback(node_names);
  const std::optional<std::string> told = told_address(environment, all_here);
  auto network = transport::network_of(environment);
  group->store_ = store.supplied;
  if (group->store_ == nullptr) {
    std::string host = store.host;
    if (host.empty() && rank == 0) host = told ? *told : likely_address(all_here);
    auto served = ServedStore::open(rank, group->size(), gather, host, deadline);
    if (!served.ok()) return served.status();
    group->store_ = std::move(served).value();
  }
  if (Status status = group->agree(network.status(), deadline); !status.ok()) return status;
  group->network_ = std::move(network).value();
  if (Status status = group->join_node(deadline); !status.ok()) return status;
  const std::string own_host = told.value_or(group->store_->own_host());
  if (Status status = group->tie_lines(node_names, own_host, deadline); !status.ok()) return status;
  group->store_->watch([self = group.get()] { return self->find_lost(); });
  return std::unique_ptr<Group>(std::move(group));
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

// With those that this rank serves, and that serve it: of a rank's end the one that serves it tells its node.
Status SpanningGroup::tie_lines(const std::vector<std::string>& node_names, const std::string& host,
                                base::Deadline deadline) {
  const auto name_of = [&](int rank) { return node_names[static_cast<std::size_t>(rank)]; };
  std::vector<Lifelines::Peer> peers;
  for (const int peer : everyone_) {
    if (nodes_.together(peer, rank_)) continue;
    if (nodes_.rail_peer(peer, nodes_.node_of(rank_)) == rank_ ||
        nodes_.rail_peer(rank_, nodes_.node_of(peer)) == peer) {
      peers.push_back({peer, network_of_node(name_of(peer)) == network_of_node(name_of(rank_))});
    }
  }
  const Gather gather = [&](std::string_view blob) { return all_gather(blob, deadline); };
  const auto longest =
      deadline.is_never() ? kLinesTied
                          : std::min(kLinesTied, std::chrono::nanoseconds(deadline.remaining_ns()));
  auto lines = Lifelines::tie(rank_, size(), peers, host, gather, longest);
  if (!lines.ok()) return lines.status();
  peers_ = std::make_shared<Both>(rank_, nodes_, node_->peers(), std::move(lines).value());
  return {};
}

Result<std::vector<std::string>> SpanningGroup::gather_among(const std::vector<int>& members,
                                                             const std::string& key,
                                                             std::string_view blob,
                                                             base::Deadline deadline) {
  keys_.push_back(key_of(key, rank_));
  if (Status status = store_->set(keys_.back(), blob, deadline); !status.ok()) return status;
  std::vector<std::string> keys;
  for (const int member : members) keys.push_back(key_of(key, member));
  return gather_keys(*store_, keys, deadline, [&](std::size_t i) {
    return "collective call of a world of " + std::to_string(size()) + " ranks: rank " +
           std::to_string(members[i]) + " did not come before the deadline";
  });
}

Result<std::vector<std::string>> SpanningGroup::all_gather(std::string_view blob,
                                                           base::Deadline deadline) {
  if (Status status = check_joined(process_, rank_); !status.ok()) return status;
  if (left_) {
    return Status(StatusCode::failed_precondition,
                  "rank " + std::to_string(rank_) + " has left this world and calls a collective");
  }
  if (!broken_.ok()) return broken_;
  return gather_parts(blob, deadline);
}

// Others wait for what does not come; and what has come does not fit what would be said next.
void SpanningGroup::give_up(const Status& why) noexcept {
  if (!broken_.ok() || process_.forked()) return;
  try {
    broken_ = why;
  } catch (const std::bad_alloc&) {
    broken_ = Status(StatusCode::out_of_memory, "no memory");  // Too short to need any.
  }
  try {
    store_->give_up(broken_);
  } catch (const std::bad_alloc&) {  // With a caller's store, others have their deadlines.
  }
  node_->give_up(broken_);
}

Result<std::vector<std::string>> SpanningGroup::gather_parts(std::string_view blob,
                                                             base::Deadline deadline) {
  auto blobs = gather_values(first_value(blob), deadline);
  Status status = blobs.status();
  std::size_t longest = 0;
  if (status.ok()) {
    for (std::size_t rank = 0; rank < blobs->size(); ++rank) {
      const std::uint64_t length = take_length((*blobs)[rank]);
      if (length > kBlobBytesMax) {  // All ranks see the same: the world goes on.
        return Status(StatusCode::invalid_argument,
                      "rank " + std::to_string(rank) + " gave a blob of " + std::to_string(length) +
                          " bytes, expected at most " + std::to_string(kBlobBytesMax));
      }
      longest = std::max(longest, static_cast<std::size_t>(length));
    }
    status = gather_rest(blob, *blobs, longest, deadline);
  }
  if (status.ok()) return blobs;
  broken_ = status;
  store_->give_up(broken_);
  return status;
}

Status SpanningGroup::gather_rest(std::string_view blob, std::vector<std::string>& blobs,
                                  std::size_t longest, base::Deadline deadline) {
  for (std::size_t done = kPartBytes; done < longest; done += kPartBytes) {
    const auto part = done < blob.size() ? blob.substr(done, kPartBytes) : std::string_view();
    auto parts = gather_values(part, deadline);
    if (!parts.ok()) return parts.status();
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) blobs[rank] += (*parts)[rank];
  }
  return {};
}

Result<std::vector<std::string>> SpanningGroup::gather_values(std::string_view value,
                                                              base::Deadline deadline) {
  const std::vector<std::string> before = std::exchange(keys_, {});
  auto blobs = gather_among(everyone_, all_key(gathers_++), value, deadline);
  if (!blobs.ok()) return blobs;
  // Whoever is in this gather has read everything of the calls before.
  for (const std::string& key : before) {
    if (Status status = store_->erase(key, deadline); !status.ok()) return status;
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
    const Result<base::Descriptor>& mine, base::Deadline deadline) {
  auto here = node_->exchange_files(mine, deadline);
  if (Status status = agree(here.status(), deadline); !status.ok()) return status;
  std::vector<base::Descriptor> files(everyone_.size());
  for (const int rank : nodes_.ranks_of(nodes_.node_of(rank_))) {
    files[static_cast<std::size_t>(rank)] =
        std::move((*here)[static_cast<std::size_t>(nodes_.place_of(rank))]);
  }
  return files;
}

memory::ControlPage& SpanningGroup::control(int rank) noexcept {
  return peers_->control(rank);
}
bool SpanningGroup::is_dead(int rank) const noexcept {
  return peers_->is_dead(rank);
}
bool SpanningGroup::has_ended(int rank) const noexcept {
  return peers_->has_ended(rank);
}
bool SpanningGroup::hung_up(int rank) const noexcept {
  return peers_->hung_up(rank);
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
  const std::string name = "split/" + std::to_string(number) + "/" + std::to_string(color);
  int gathers = 0;
  const Gather among_members = [&](std::string_view blob) {
    return gather_among(members, name + "/" + std::to_string(gathers++), blob, deadline);
  };
  const int new_rank = static_cast<int>(place);
  const int new_size = static_cast<int>(members.size());
  const std::size_t before = keys_.size();
  auto group = ProcessGroup::create(new_rank, new_size, among_members, deadline, this_host(),
                                    store_->part(name, new_rank, new_size));
  if (!group.ok()) return group.status();
  // Where a rank has joined, all members have read what the gathers brought: they have met since then. This world may have no
  // further call that would erase it.
  const auto own = keys_.begin() + static_cast<std::ptrdiff_t>(before);
  const auto erased = [&](const std::string& each) { return store_->erase(each, deadline).ok(); };
  keys_.erase(std::remove_if(own, keys_.end(), erased), keys_.end());
  return group;
}

std::string SpanningGroup::key_of(const std::string& gather, int rank) {
  return gather + "/" + std::to_string(rank);
}

std::optional<int> SpanningGroup::find_lost() const {
  for (const int rank : nodes_.ranks_of(nodes_.node_of(rank_))) {
    if (rank != rank_ && is_dead(rank)) return rank;
  }
  return std::nullopt;
}

Status SpanningGroup::leave(base::Deadline deadline) {
  if (Status status = check_joined(process_, rank_); !status.ok()) return status;
  left_ = true;
  peers_->say_goodbye();
  Status status = node_->leave(deadline);
  std::vector<std::string> last;
  for (const int rank : everyone_) last.push_back(key_of(all_key(gathers_ - 1), rank));
  store_->leave(last, deadline);
  return status;
}

}  // namespace sluice::bootstrap
