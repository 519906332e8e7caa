// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/world_store.hpp"
#include "sluice/store.hpp"

namespace sluice::bootstrap {

/// A world's store that the caller has supplied. Nobody serves it for this world, so that what a server
/// knows by itself is written there: that a rank is lost, and how many have left. Keys:
///   size         of the world, by whoever comes first
///   join/<rank>  what it tells all others, and that its place is taken
///   join/lost    what happened, for those who do not know all others yet
///   lost         the same for those who do: only a rank of this world can write it, so that one that
///                comes too much does not end it
///   left         how many ranks have left
/// and those of SpanningGroup, all behind a prefix.
class SuppliedStore final : public WorldStore {
 public:
  /// `prefix`: "sluice/".
  SuppliedStore(std::shared_ptr<Store> store, std::string prefix, int rank, int size);

  /// Before the first gather: ranks that expect another size are a `mismatch`.
  Status enter(base::Deadline deadline);
  /// The gather of all ranks by which they join. `failed_precondition` if another has this rank's place.
  Result<std::vector<std::string>> gather(std::string_view blob, base::Deadline deadline);
  /// All ranks have joined, and need the store no more.
  void tidy(base::Deadline deadline);

  Status set(const std::string& key, std::string_view value, base::Deadline deadline) override;
  Result<std::string> get(const std::string& key, base::Deadline deadline) override;
  Result<std::vector<std::string>> get_all(std::span<const std::string> keys,
                                           base::Deadline deadline) override;
  Status erase(const std::string& key, base::Deadline deadline) override;
  std::string own_host() const override;
  StorePlace part(const std::string& name, int rank, int size) const override;
  void give_up(const Status& why) override;
  void watch(std::function<std::optional<int>()> find_lost) override;
  void leave(const std::vector<std::string>& left_behind, base::Deadline deadline) override;
  void disown() noexcept override;

 private:
  /// Sets the key if it is not there.
  Result<Store::Swap> claim(const std::string& key, std::string_view value,
                            std::chrono::nanoseconds timeout);
  Result<std::string> look(const std::string& key, std::chrono::nanoseconds timeout);
  /// Not ok: a rank is lost.
  Status look_for_losses(std::chrono::nanoseconds at_most);

  std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
  std::function<std::optional<int>()> find_lost_;
  bool joined_here_ = false;  // It has a place in the store, not only in a world that was split.
  bool knows_all_ = false;
};

}  // namespace sluice::bootstrap
