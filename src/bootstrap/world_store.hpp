// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

class WorldStore;

/// Where a world over several nodes has its store.
struct StorePlace {
  /// Rank 0 serves it at this host, a name or an address by which the others reach it. Empty: this
  /// machine's name.
  std::string host;
  /// Or the caller has one.
  std::shared_ptr<WorldStore> supplied;
};

/// The key-value store of one rank of a world over several nodes, for as long as the world lasts.
class WorldStore {
 public:
  virtual ~WorldStore() = default;

  virtual Status set(const std::string& key, std::string_view value, base::Deadline deadline) = 0;
  /// Waits until somebody sets the key, or a rank is known to be lost (`unavailable`).
  virtual Result<std::string> get(const std::string& key, base::Deadline deadline) = 0;
  /// All of them, in order. `deadline_exceeded` may name any.
  virtual Result<std::vector<std::string>> get_all(std::span<const std::string> keys,
                                                   base::Deadline deadline) = 0;
  virtual Status erase(const std::string& key, base::Deadline deadline) = 0;

  /// An address of this machine by which others are likely to reach it: from which it reaches the store, if that is known.
  virtual std::string own_host() const = 0;
  /// For a world of some of these ranks; `name`: among worlds made of this one.
  virtual StorePlace part(const std::string& name, int rank, int size) const = 0;
  /// This rank does not join, or has failed in a collective call: others need not wait for it.
  virtual void give_up(const Status& why) = 0;
  /// How this rank learns that one of its node has ended without leaving. For the rest of its life.
  virtual void watch(std::function<std::optional<int>()> find_lost) = 0;
  /// The last call. `left_behind`: keys of all ranks that one may still read until all have left.
  virtual void leave(const std::vector<std::string>& left_behind, base::Deadline deadline) = 0;
  /// In a forked child: threads and connections are the parent's, and are not ended from here.
  virtual void disown() noexcept = 0;
};

}  // namespace sluice::bootstrap
