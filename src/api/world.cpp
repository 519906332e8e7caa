// SPDX-License-Identifier: MIT
#include "sluice/world.hpp"

#include <utility>

#include "api/guarded.hpp"
#include "base/deadline.hpp"
#include "base/environment.hpp"
#include "base/log.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/launch_environment.hpp"
#include "bootstrap/process_group.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/store_join.hpp"
#include "bootstrap/thread_group.hpp"
#include "sluice/limits.hpp"
#include "store/address.hpp"
#include "transport/network.hpp"

namespace sluice {
namespace {

using api::guarded;
using api::guarded_for_all;
using bootstrap::Group;

Status check_size(int size) {
  if (size >= 1 && size <= kMaxRanks) return {};
  return Status(
      StatusCode::invalid_argument,
      "a world of " + std::to_string(size) + " ranks, expected 1 to " + std::to_string(kMaxRanks));
}

Status check_place(int rank, int size) {
  if (Status status = check_size(size); !status.ok()) return status;
  if (rank >= 0 && rank < size) return {};
  return Status(StatusCode::invalid_argument, "rank " + std::to_string(rank) + " of a world of " +
                                                  std::to_string(size) + ", expected 0 to " +
                                                  std::to_string(size - 1));
}

Status gone_status() {
  return Status(StatusCode::failed_precondition,
                "this World has been moved from: it has no ranks to call");
}

Status check_active(Group& group) {
  // Own stores only: relaxed would do, acquire keeps the page's one rule.
  const auto state = group.control(group.rank()).state.load(std::memory_order_acquire);
  if (state != static_cast<std::uint32_t>(memory::RankState::left)) return {};
  return Status(StatusCode::failed_precondition,
                "rank " + std::to_string(group.rank()) + " has left this world");
}

}  // namespace

World::World(std::shared_ptr<bootstrap::Group> group, WorldOptions options)
    : group_(std::move(group)), options_(options) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

int World::rank() const noexcept {
  return group_ == nullptr ? -1 : group_->rank();
}
int World::size() const noexcept {
  return group_ == nullptr ? 0 : group_->size();
}

Result<World> World::from_environment(const WorldOptions& options) {
  return guarded([&]() -> Result<World> {
    auto launch = bootstrap::read_launch(base::Environment::read());
    if (!launch.ok()) return launch.status();
    base::log_info("rank {} of {} joins at {} ({})", launch->rank, launch->size, launch->rendezvous,
                   launch->launcher);
    return join(launch->rank, launch->size, launch->rendezvous, options);
  });
}

Result<World> World::join(int rank, int size, std::string_view rendezvous,
                          const WorldOptions& options) {
  return guarded([&]() -> Result<World> {
    if (Status status = check_place(rank, size); !status.ok()) return status;
    auto address = store::parse_address(rendezvous);
    if (!address.ok()) return address.status();
    const auto deadline = base::Deadline::after(options.deadline);
    // Ranks that can meet at a name are on one machine.
    const bool named = address->kind == store::Address::Kind::unix_abstract;
    // Where rank 0 listens at all addresses, that says not where others reach it.
    const bool anywhere = address->host == "0.0.0.0" || address->host == "::";
    bootstrap::Rendezvous meeting(*address, rank, size, deadline);
    auto group = bootstrap::ProcessGroup::create(
        rank, size, [&](std::string_view blob) { return meeting.gather(blob); }, deadline,
        bootstrap::this_host(),
        {named      ? "localhost"
         : anywhere ? ""
                    : address->host,
         nullptr});
    meeting.end(group.ok());
    if (!group.ok()) return group.status();
    return World(std::move(*group), options);
  });
}

Result<World> World::join(int rank, int size, std::shared_ptr<Store> store,
                          const WorldOptions& options) {
  return guarded([&]() -> Result<World> {
    if (Status status = check_place(rank, size); !status.ok()) return status;
    if (store == nullptr) {
      return Status(StatusCode::invalid_argument, "the store is null, expected one");
    }
    auto group = bootstrap::join_through(std::move(store), rank, size,
                                         base::Deadline::after(options.deadline));
    if (!group.ok()) return group.status();
    return World(std::move(*group), options);
  });
}

Result<World> World::create(int rank, int size, const AllGather& all_gather,
                            const WorldOptions& options) {
  return guarded([&]() -> Result<World> {
    if (Status status = check_place(rank, size); !status.ok()) return status;
    if (!all_gather) {
      return Status(StatusCode::invalid_argument, "all_gather is empty, expected a function");
    }
    auto group = bootstrap::ProcessGroup::create(rank, size, all_gather,
                                                 base::Deadline::after(options.deadline));
    if (!group.ok()) return group.status();
    return World(std::move(*group), options);
  });
}

Result<std::vector<World>> World::threads(int size, const WorldOptions& options) {
  return threads(std::vector<int>{size}, options);
}

Result<std::vector<World>> World::threads(const std::vector<int>& node_sizes,
                                          const WorldOptions& options) {
  return guarded([&]() -> Result<std::vector<World>> {
    int size = 0;
    for (const int ranks : node_sizes) {
      // Each first, so that their sum is no overflow.
      if (Status status = check_size(ranks); !status.ok()) return status;
      size += ranks;
      if (Status status = check_size(size); !status.ok()) return status;
    }
    if (Status status = check_size(size); !status.ok()) return status;
    std::shared_ptr<transport::Network> network;
    if (node_sizes.size() > 1) {
      auto named = transport::network_of(base::Environment::read());
      if (!named.ok()) return named.status();
      network = std::move(named).value();
    }
    std::vector<World> worlds;
    worlds.reserve(static_cast<std::size_t>(size));
    for (auto& group :
         bootstrap::ThreadGroup::create_all(routing::NodeMap::of_sizes(node_sizes), network)) {
      worlds.push_back(World(std::move(group), options));
    }
    return worlds;
  });
}

Result<std::vector<std::string>> World::all_gather(std::string_view blob) {
  if (group_ == nullptr)
    return guarded([] { return Result<std::vector<std::string>>(gone_status()); });
  return guarded_for_all(*group_, [&]() -> Result<std::vector<std::string>> {
    if (Status status = check_active(*group_); !status.ok()) return status;
    return group_->all_gather(blob, base::Deadline::after(options_.deadline));
  });
}

Status World::barrier() {
  return all_gather({}).status();
}

Result<World> World::split(int color, int key) {
  if (group_ == nullptr) return guarded([] { return Result<World>(gone_status()); });
  return guarded_for_all(*group_, [&]() -> Result<World> {
    if (Status status = check_active(*group_); !status.ok()) return status;
    auto group = group_->split(color, key, base::Deadline::after(options_.deadline));
    if (!group.ok()) return group.status();
    return World(std::move(*group), options_);
  });
}

Status World::leave(std::chrono::nanoseconds deadline) {
  return guarded([&]() -> Status {
    if (group_ == nullptr) return gone_status();
    if (Status status = check_active(*group_); !status.ok()) return status;
    return group_->leave(base::Deadline::after(deadline));
  });
}

}  // namespace sluice
