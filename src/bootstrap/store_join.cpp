// SPDX-License-Identifier: MIT
#include "bootstrap/store_join.hpp"

#include <string_view>
#include <utility>

#include "bootstrap/process_group.hpp"
#include "bootstrap/supplied_store.hpp"

namespace sluice::bootstrap {

Result<std::unique_ptr<Group>> join_through(std::shared_ptr<Store> store, int rank, int size,
                                            base::Deadline deadline,
                                            const Result<HostIdentity>& host) {
  const auto supplied = std::make_shared<SuppliedStore>(std::move(store), "sluice/", rank, size);
  const auto join = [&]() -> Result<std::unique_ptr<Group>> {
    if (Status status = supplied->enter(deadline); !status.ok()) return status;
    return ProcessGroup::create(
        rank, size, [&](std::string_view blob) { return supplied->gather(blob, deadline); },
        deadline, host, {{}, supplied});
  };
  auto group = join();
  if (!group.ok()) supplied->give_up(group.status());
  // A world over several nodes keeps its place until all have left.
  if (group.ok() && (*group)->nodes().nodes() == 1) supplied->tidy(deadline);
  return group;
}

}  // namespace sluice::bootstrap
