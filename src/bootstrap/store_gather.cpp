// SPDX-License-Identifier: MIT
#include "bootstrap/store_gather.hpp"

#include "bootstrap/gather_keys.hpp"

namespace sluice::bootstrap {

Result<std::vector<std::string>> gather_through(store::Store& store, int gather, int rank, int size,
                                                std::string_view blob, base::Deadline deadline) {
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) {
    keys.push_back("blob/" + std::to_string(gather) + "/" + std::to_string(peer));
  }
  const std::string& own = keys[static_cast<std::size_t>(rank)];
  if (Status status = store.set(own, blob, deadline); !status.ok()) return status;
  return gather_keys(store, keys, deadline, did_not_join);
}

}  // namespace sluice::bootstrap
