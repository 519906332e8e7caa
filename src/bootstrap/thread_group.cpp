// SPDX-License-Identifier: MIT
#include "bootstrap/thread_group.hpp"

#include <algorithm>
#include <utility>

#include "bootstrap/agreement.hpp"
#include "memory/mapping.hpp"

namespace sluice::bootstrap {
namespace {

// The ranks' statuses, agreed, of a round in which every blob is one.
Status agreed_in(const std::vector<ThreadRendezvous::Contribution>& round) {
  std::vector<Status> outcomes;
  for (const auto& contribution : round) outcomes.push_back(decode_status(contribution.blob));
  return agreed_status(outcomes);
}

}  // namespace

std::vector<std::unique_ptr<Group>> ThreadGroup::create_all(int size) {
  return create_all(routing::NodeMap::one_node(size), nullptr);
}

std::vector<std::unique_ptr<Group>> ThreadGroup::create_all(
    const routing::NodeMap& nodes, const std::shared_ptr<transport::Network>& network) {
  const auto rendezvous = std::make_shared<ThreadRendezvous>(nodes.ranks());
  std::vector<std::unique_ptr<Group>> groups;
  groups.reserve(static_cast<std::size_t>(nodes.ranks()));
  for (int rank = 0; rank < nodes.ranks(); ++rank) {
    groups.push_back(std::make_unique<ThreadGroup>(rendezvous, rank, nodes, network));
  }
  return groups;
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadRendezvous> rendezvous, int rank,
                         routing::NodeMap nodes, std::shared_ptr<transport::Network> network)
    : rendezvous_(std::move(rendezvous)),
      rank_(rank),
      nodes_(std::move(nodes)),
      network_(std::move(network)),
      elsewhere_(std::make_unique<memory::ControlPage>()) {}

ThreadGroup::~ThreadGroup() {
  rendezvous_->abandon(rank_);
}

Result<std::vector<std::string>> ThreadGroup::all_gather(std::string_view blob,
                                                         base::Deadline deadline) {
  auto round = rendezvous_->exchange(rank_, {std::string(blob), nullptr}, deadline);
  if (!round.ok()) return round.status();
  std::vector<std::string> blobs;
  blobs.reserve((*round)->size());
  for (const auto& contribution : **round) blobs.push_back(contribution.blob);
  return blobs;
}

Result<memory::SharedRegion> ThreadGroup::share(std::size_t bytes, bool committed,
                                                base::Deadline deadline) {
  auto mapping = memory::Mapping::anonymous(bytes, committed);
  ThreadRendezvous::Contribution mine;
  mine.blob = encode_status(mapping.status());
  if (mapping.ok()) mine.object = std::make_shared<memory::Mapping>(std::move(*mapping));
  auto round = rendezvous_->exchange(rank_, std::move(mine), deadline);
  if (!round.ok()) return round.status();

  if (Status status = agreed_in(**round); !status.ok()) return status;
  std::vector<memory::SharedRegion::Part> parts;
  for (int rank = 0; rank < size(); ++rank) {
    const auto& contribution = (**round)[static_cast<std::size_t>(rank)];
    const auto& part = *static_cast<const memory::Mapping*>(contribution.object.get());
    parts.push_back({nodes_.together(rank, rank_) ? part.base() : nullptr, part.bytes()});
  }
  // The round owns the mappings; whoever releases it last unmaps them.
  return memory::SharedRegion(std::move(parts), [owner = *round]() mutable { owner.reset(); });
}

Result<std::vector<base::Descriptor>> ThreadGroup::exchange_files(
    const Result<base::Descriptor>& mine, base::Deadline deadline) {
  // The round owns a duplicate, because the caller's may be closed when a peer looks.
  auto offered =
      mine.ok() ? base::duplicate(mine.value()) : Result<base::Descriptor>(mine.status());
  ThreadRendezvous::Contribution offer;
  offer.blob = encode_status(offered.status());
  if (offered.ok()) offer.object = std::make_shared<base::Descriptor>(std::move(*offered));
  auto round = rendezvous_->exchange(rank_, std::move(offer), deadline);
  if (!round.ok()) return round.status();
  if (Status status = agreed_in(**round); !status.ok()) return status;

  std::vector<base::Descriptor> files;
  Status taken;
  for (const auto& contribution : **round) {
    auto file = base::duplicate(*static_cast<const base::Descriptor*>(contribution.object.get()));
    taken = file.status();
    if (!taken.ok()) break;
    files.push_back(std::move(*file));
  }
  if (!taken.ok()) files.clear();  // Before the others look: a rank may try again.
  auto outcomes = rendezvous_->exchange(rank_, {encode_status(taken), nullptr}, deadline);
  if (!outcomes.ok()) return outcomes.status();
  if (Status status = agreed_in(**outcomes); !status.ok()) return status;
  return files;
}

Result<std::unique_ptr<Group>> ThreadGroup::split(int color, int key, base::Deadline deadline) {
  auto wished = all_gather(encode_split_wish({color, key}), deadline);
  if (!wished.ok()) return wished.status();
  auto wishes = decode_split_wishes(*wished);
  if (!wishes.ok()) return wishes.status();
  const std::vector<int> members = split_members(*wishes, color);
  // The first rank of every color brings the new rendezvous; all ranks take part in the round.
  ThreadRendezvous::Contribution mine;
  if (color >= 0 && members.front() == rank_) {
    mine.object = std::make_shared<ThreadRendezvous>(static_cast<int>(members.size()));
  }
  auto round = rendezvous_->exchange(rank_, std::move(mine), deadline);
  if (!round.ok()) return round.status();
  if (color < 0) return no_group_for(color);
  const auto leader = static_cast<std::size_t>(members.front());
  auto rendezvous = std::static_pointer_cast<ThreadRendezvous>((**round)[leader].object);
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  return std::unique_ptr<Group>(std::make_unique<ThreadGroup>(
      std::move(rendezvous), static_cast<int>(place), nodes_.among(members), network_));
}

Status ThreadGroup::leave(base::Deadline) {
  rendezvous_->leave(rank_);
  return {};
}

}  // namespace sluice::bootstrap
