// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/own_process.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/introduction.hpp"
#include "bootstrap/lifelines.hpp"
#include "bootstrap/world_store.hpp"

namespace sluice::bootstrap {

/// One rank of a world whose ranks are processes of several nodes: on each node a ProcessGroup, and a
/// store, served by rank 0 or supplied, for what concerns all. A rank that ends without leave() ends the
/// collective calls of all others; with a supplied store once another of its node waits in one.
class SpanningGroup final : public Group {
 public:
  /// Collective; `gather` is called once, or never with a supplied store. `node_names`: of every rank.
  static Result<std::unique_ptr<Group>> create(int rank, const std::vector<std::string>& node_names,
                                               const Gather& gather, const StorePlace& store,
                                               base::Deadline deadline);
  ~SpanningGroup() override;
  SpanningGroup(const SpanningGroup&) = delete;
  SpanningGroup& operator=(const SpanningGroup&) = delete;

  std::shared_ptr<Peers> peers() override;
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return nodes_.ranks(); }
  const routing::NodeMap& nodes() const noexcept override { return nodes_; }
  std::shared_ptr<transport::Network> network() const noexcept override { return network_; }
  Result<std::vector<std::string>> all_gather(std::string_view blob,
                                              base::Deadline deadline) override;
  Result<memory::SharedRegion> share(std::size_t bytes, bool committed,
                                     base::Deadline deadline) override;
  Result<std::vector<base::Descriptor>> exchange_files(const Result<base::Descriptor>& mine,
                                                       base::Deadline deadline) override;
  memory::ControlPage& control(int rank) noexcept override;
  bool is_dead(int rank) const noexcept override;
  bool has_ended(int rank) const noexcept override;
  bool hung_up(int rank) const noexcept override;
  Result<std::unique_ptr<Group>> split(int color, int key, base::Deadline deadline) override;
  void give_up(const Status& why) noexcept override;
  Status leave(base::Deadline deadline) override;

 private:
  SpanningGroup(int rank, routing::NodeMap nodes);
  Result<std::vector<std::string>> gather_parts(std::string_view blob, base::Deadline deadline);
  /// One value of every rank, as long as the store takes it.
  Result<std::vector<std::string>> gather_values(std::string_view value, base::Deadline deadline);
  /// What is not in the first values yet, of which each begins with the length of its blob.
  Status gather_rest(std::string_view blob, std::vector<std::string>& blobs, std::size_t longest,
                     base::Deadline deadline);
  Status join_node(base::Deadline deadline);
  Status tie_lines(const std::vector<std::string>& node_names, const std::string& host,
                   base::Deadline deadline);
  /// Through the store, among `members`, under keys that nobody else uses.
  Result<std::vector<std::string>> gather_among(const std::vector<int>& members,
                                                const std::string& key, std::string_view blob,
                                                base::Deadline deadline);
  static std::string key_of(const std::string& gather, int rank);
  /// One of this node that has ended without leaving.
  std::optional<int> find_lost() const;

  class Both;

  const base::OwnProcess process_;
  const int rank_;
  const routing::NodeMap nodes_;
  std::shared_ptr<transport::Network> network_;
  std::shared_ptr<WorldStore> store_;
  std::shared_ptr<Group> node_;  // The ranks of this node.
  std::shared_ptr<Both> peers_;  // Those, and the ranks of other nodes.
  std::vector<int> everyone_;
  std::uint64_t gathers_ = 0;
  std::vector<std::string> keys_;  // Of this rank, that others may still read.
  Status broken_;  // Of the first collective call that failed: ranks may be apart since.
  bool left_ = false;
};

}  // namespace sluice::bootstrap
