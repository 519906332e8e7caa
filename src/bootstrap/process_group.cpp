// SPDX-License-Identifier: MIT
#include "bootstrap/process_group.hpp"

#include <algorithm>
#include <utility>

#include "bootstrap/agreement.hpp"
#include "bootstrap/mesh_connect.hpp"
#include "bootstrap/mesh_files.hpp"
#include "bootstrap/mesh_share.hpp"
#include "bootstrap/spanning_group.hpp"
#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

// Fills in what this rank tells the others; the listening socket stays here.
Result<base::Descriptor> prepare(Introduction& mine, const Result<HostIdentity>& host) {
  if (!host.ok()) return host.status();
  mine.host = host.value();
  auto nonce = store::random_name();
  if (!nonce.ok()) return nonce.status();
  mine.nonce = *nonce;
  auto name = store::random_name();
  if (!name.ok()) return name.status();
  store::Address address;
  address.kind = store::Address::Kind::unix_abstract;
  address.name = "sluice-" + *name;
  mine.listener = address.name;
  return store::listen_at(address);
}

// The node of every rank; nothing if all run on one.
std::vector<std::string> several_nodes(const std::vector<Introduction>& introductions) {
  std::vector<std::string> nodes;
  for (const Introduction& each : introductions) nodes.push_back(each.host.node);
  const bool one = std::all_of(nodes.begin(), nodes.end(),
                               [&](const std::string& node) { return node == nodes.front(); });
  if (one) nodes.clear();
  return nodes;
}

}  // namespace

ProcessGroup::ProcessGroup(Mesh mesh)
    : mesh_(std::move(mesh)), nodes_(routing::NodeMap::one_node(mesh_.size())) {}

Result<std::unique_ptr<Group>> ProcessGroup::create(int rank, int size, const Gather& gather,
                                                    base::Deadline deadline,
                                                    const Result<HostIdentity>& host,
                                                    const StorePlace& store) {
  Introduction mine;
  mine.rank = rank;
  mine.size = size;
  // A rank that cannot even listen still takes part in the gather, so that all learn why.
  auto listener = prepare(mine, host);
  mine.status = listener.status();
  auto introductions = introduce(mine, gather);
  if (!introductions.ok()) return introductions.status();
  if (std::vector<std::string> nodes = several_nodes(*introductions); !nodes.empty()) {
    return SpanningGroup::create(rank, nodes, gather, store, deadline);
  }
  auto mesh = connect_mesh(rank, *introductions, *listener, deadline);
  if (!mesh.ok()) return mesh.status();

  std::unique_ptr<ProcessGroup> group(new ProcessGroup(std::move(*mesh)));
  // Nobody knows yet who has left: until all have their pages, a closed connection is a death.
  auto pages = share_over(group->mesh_, sizeof(GroupPages), true, deadline);
  if (!pages.ok()) return pages.status();
  group->pages_ = std::move(*pages);
  group->mesh_.set_signs([self = group.get()](int peer) { return self->state_of(peer); },
                         [self = group.get()] {
                           // Pairs with the acquire loads in state_of() and in the peers' monitors.
                           self->control(self->rank())
                               .state.store(static_cast<std::uint32_t>(memory::RankState::gave_up),
                                            std::memory_order_release);
                         });
  auto monitor = PeerMonitor::start(group->mesh_, group->pages_);
  // A thread that cannot start is everybody's failure: no rank goes on with a peer that gave up.
  auto started =
      group->gather_blobs(ExchangeKind::share_outcome, encode_status(monitor.status()), deadline);
  if (!started.ok()) return started.status();
  if (monitor.ok()) group->monitor_ = std::move(*monitor);
  if (Status status = agreed_status(*started); !status.ok()) return status;
  return std::unique_ptr<Group>(std::move(group));
}

Status ProcessGroup::check_process() const {
  return check_joined(process_, rank());
}

memory::RankState ProcessGroup::state_of(int rank) const noexcept {
  // Pairs with the release stores in leave(), and in create().
  return static_cast<memory::RankState>(
      pages_of(pages_, rank).control.state.load(std::memory_order_acquire));
}

Result<std::vector<std::string>> ProcessGroup::gather_blobs(ExchangeKind kind,
                                                            std::string_view blob,
                                                            base::Deadline deadline) {
  if (Status status = check_process(); !status.ok()) return status;
  auto messages = mesh_.exchange(kind, blob, nullptr, deadline);
  if (!messages.ok()) return messages.status();
  std::vector<std::string> blobs;
  blobs.reserve(messages->size());
  for (Mesh::Message& message : *messages) blobs.push_back(std::move(message.blob));
  return blobs;
}

Result<std::vector<std::string>> ProcessGroup::all_gather(std::string_view blob,
                                                          base::Deadline deadline) {
  return gather_blobs(ExchangeKind::all_gather, blob, deadline);
}

Result<memory::SharedRegion> ProcessGroup::share(std::size_t bytes, bool committed,
                                                 base::Deadline deadline) {
  if (Status status = check_process(); !status.ok()) return status;
  return share_over(mesh_, bytes, committed, deadline);
}

Result<std::vector<base::Descriptor>> ProcessGroup::exchange_files(
    const Result<base::Descriptor>& mine, base::Deadline deadline) {
  if (Status status = check_process(); !status.ok()) return status;
  return exchange_files_over(mesh_, mine, deadline);
}

Result<std::unique_ptr<Group>> ProcessGroup::split(int color, int key, base::Deadline deadline) {
  auto wished = gather_blobs(ExchangeKind::split, encode_split_wish({color, key}), deadline);
  if (!wished.ok()) return wished.status();
  auto wishes = decode_split_wishes(*wished);
  if (!wishes.ok()) return wishes.status();
  if (color < 0) {
    // The introductions of all new worlds travel in one gather of the old one.
    const Status status = gather_blobs(ExchangeKind::split, {}, deadline).status();
    return status.ok() ? no_group_for(color) : status;
  }
  const std::vector<int> members = split_members(*wishes, color);
  const auto place = std::find(members.begin(), members.end(), rank()) - members.begin();
  const Gather among_members = [&](std::string_view blob) -> Result<std::vector<std::string>> {
    auto all = gather_blobs(ExchangeKind::split, blob, deadline);
    if (!all.ok()) return all.status();
    std::vector<std::string> blobs;
    for (const int member : members) {
      blobs.push_back(std::move((*all)[static_cast<std::size_t>(member)]));
    }
    return blobs;
  };
  return create(static_cast<int>(place), static_cast<int>(members.size()), among_members, deadline);
}

Status ProcessGroup::leave(base::Deadline deadline) {
  if (Status status = check_process(); !status.ok()) return status;
  GroupPages& mine = pages_of(pages_, rank());
  // Then its connections have ended before, and nobody takes note any more.
  const bool gave_up = state_of(rank()) == memory::RankState::gave_up;
  // Pairs with the acquire loads in state_of() and in the peers' monitors.
  mine.control.state.store(static_cast<std::uint32_t>(memory::RankState::left),
                           std::memory_order_release);
  mesh_.close_sending(Status(StatusCode::failed_precondition,
                             "rank " + std::to_string(rank()) + " has left this world"));
  for (int peer = 0; peer < size(); ++peer) control(peer).doorbell.ring();
  if (gave_up) return {};

  const auto not_told = [&] {
    std::vector<int> peers;
    for (int peer = 0; peer < size(); ++peer) {
      // Pairs with the release store in PeerMonitor::note_end().
      const bool told =
          mine.leave_seen_by[static_cast<std::size_t>(peer)].load(std::memory_order_acquire) != 0;
      const bool left = state_of(peer) == memory::RankState::left;
      if (peer != rank() && !told && !is_dead(peer) && !left) peers.push_back(peer);
    }
    return peers;
  };
  memory::Sleeper sleeper(mine.control.doorbell);
  for (;;) {
    sleeper.prepare();
    const std::vector<int> waiting = not_told();
    if (waiting.empty()) return {};
    if (deadline.expired()) {
      return Status(StatusCode::deadline_exceeded, "rank " + std::to_string(rank()) +
                                                       " has left, but " + ranks_text(waiting) +
                                                       " did not take note before the deadline");
    }
    sleeper.sleep(deadline.remaining_ns());
  }
}

}  // namespace sluice::bootstrap
