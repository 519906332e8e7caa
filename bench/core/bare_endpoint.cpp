// SPDX-License-Identifier: MIT
#include "bare_endpoint.hpp"

#include <fmt/format.h>

#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "transport/network.hpp"

namespace sluice::bench {
namespace {

/// A number that endpoints of one network have in common, and those of others do not.
Result<std::uint64_t> meet(bootstrap::Group& group, base::Deadline deadline) {
  std::random_device device;
  auto gathered = group.all_gather(fmt::format("{:08x}{:08x}", device(), device()), deadline);
  if (!gathered) return gathered.status();
  return std::stoull(gathered->front(), nullptr, 16);
}

}  // namespace

Result<std::unique_ptr<transport::Endpoint>> bare_endpoint(
    bootstrap::Group& group, double deadline_s,
    const std::function<Result<std::span<std::byte>>(const transport::Traits&)>& memory) {
  const base::Deadline deadline =
      base::Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(deadline_s * 1e9)));
  const Result<std::uint64_t> meeting = meet(group, deadline);
  if (!meeting) return meeting.status();
  auto opened = group.network()->plain().open(group.rank(), group.size(), *meeting);
  Status status = opened.status();
  std::unique_ptr<transport::Endpoint> endpoint;
  std::string introduction;
  if (status) {
    endpoint = std::move(opened).value();
    const Result<std::span<std::byte>> region = memory(endpoint->traits());
    status =
        region ? endpoint->add_region(region->data(), region->size()).status() : region.status();
    if (status) {
      Result<std::string> mine = endpoint->introduction();
      status = mine.status();
      if (mine) introduction = std::move(mine).value();
    }
  }
  if (status = group.agree(status, deadline); !status) return status;
  const auto gathered = group.all_gather(introduction, deadline);
  if (!gathered) return gathered.status();
  for (int peer = 0; peer < group.size() && status.ok(); ++peer) {
    if (group.nodes().together(peer, group.rank())) continue;
    status = endpoint->connect(peer, (*gathered)[static_cast<std::size_t>(peer)]);
  }
  if (status = group.agree(status, deadline); !status) return status;
  return endpoint;
}

}  // namespace sluice::bench
