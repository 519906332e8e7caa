// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "bootstrap/introduction.hpp"
#include "bootstrap/world_store.hpp"
#include "store/socket_store.hpp"
#include "store/socket_store_server.hpp"

namespace sluice::bootstrap {

/// A world's store that rank 0 serves. Its server sees connections end: it knows who is lost.
class ServedStore final : public WorldStore {
 public:
  /// Collective; `gather` is called once or twice: rank 0 tells where it serves the store, or why it cannot; and all tell
  /// whether they have reached it: from then on it knows who is lost.
  static Result<std::shared_ptr<WorldStore>> open(int rank, int size, const Gather& gather,
                                                  const std::string& host, base::Deadline deadline);
  ~ServedStore() override;
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;

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
  ServedStore() = default;

  bool only_here_ = false;  // What rank 0 said leads others elsewhere than this rank.
  std::unique_ptr<store::SocketStoreServer> server_;  // rank 0
  std::unique_ptr<store::SocketStore> client_;
};

}  // namespace sluice::bootstrap
