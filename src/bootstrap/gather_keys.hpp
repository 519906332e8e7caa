// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// The values of keys that ranks set, one each. If one is missing at the deadline, `late(i)` says so of
/// the first that is. `KeyStore`: a store::Store or a WorldStore.
template <typename KeyStore, typename Late>
Result<std::vector<std::string>> gather_keys(KeyStore& store, std::span<const std::string> keys,
                                             base::Deadline deadline, const Late& late) {
  constexpr std::chrono::milliseconds kLook{100};  // For each key, whether it is the one.
  auto values = store.get_all(keys, deadline);
  if (values.status().code() != StatusCode::deadline_exceeded) return values;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Status status = store.get(keys[i], base::Deadline::after(kLook)).status();
    if (status.code() == StatusCode::deadline_exceeded) return Status(status.code(), late(i));
    if (!status.ok()) return status;
  }
  return values;  // All have come since.
}

/// `late` of keys in the order of ranks, of those that join.
inline std::string did_not_join(std::size_t rank) {
  return "rank " + std::to_string(rank) + " did not join before the deadline";
}

}  // namespace sluice::bootstrap
