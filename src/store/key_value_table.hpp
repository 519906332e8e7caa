// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

#include "store/store.hpp"

namespace sluice::store {

/// What a store holds and how each operation changes it; no threads, no waiting.
class KeyValueTable {
 public:
  /// The answer, or nothing for a get whose key is not there yet, or one of whose keys: again after a change.
  std::optional<Reply> apply(Request& request);

 private:
  Status put(const std::string& key, std::string value);
  Reply add(const Request& request);
  Reply compare_and_set(const Request& request);
  std::optional<Reply> get_all(Request& request) const;

  std::unordered_map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::store
