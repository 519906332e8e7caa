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
  /// The answer, or nothing for a get whose key is not there yet.
  std::optional<Reply> apply(const Request& request);

 private:
  Status put(const std::string& key, std::string value);
  Reply add(const Request& request);
  Reply compare_and_set(const Request& request);

  std::unordered_map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::store
