// SPDX-License-Identifier: MIT
#include "bare_endpoint.hpp"

#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "relay/relay.hpp"
#include "seconds.hpp"
#include "transport/network.hpp"

namespace sluice::bench {
Result<std::unique_ptr<transport::Endpoint>> bare_endpoint(
    bootstrap::Group& group, const std::string& gpu, double deadline_s,
    const std::function<Result<std::span<std::byte>>(const transport::Traits&)>& memory) {
  const base::Deadline deadline = deadline_of(deadline_s);
  const Result<std::uint64_t> meeting = group.number(deadline);
  if (!meeting) return meeting.status();
  const Result<transport::Purpose> purpose = relay::purpose_of(group, gpu, deadline);
  if (!purpose) return purpose.status();
  auto opened = group.network()->plain().open(group.rank(), group.size(), *meeting, *purpose);
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
