// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/own_process.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/host_identity.hpp"
#include "bootstrap/introduction.hpp"
#include "bootstrap/mesh.hpp"
#include "bootstrap/peer_monitor.hpp"
#include "bootstrap/world_store.hpp"

namespace sluice::bootstrap {

/// One rank of a world whose ranks are processes of one node (or threads that act like it): a mesh
/// of sockets, shared memory passed over it, and a monitor. Does not survive fork in the child:
/// there its calls give failed_precondition, and its destructor disturbs nobody.
class ProcessGroup final : public Group {
 public:
  /// Collective; `gather` is called once, or up to three times: for ranks of several nodes it makes a SpanningGroup,
  /// whose store is at `store`. `host`: where this rank runs.
  static Result<std::unique_ptr<Group>> create(int rank, int size, const Gather& gather,
                                               base::Deadline deadline,
                                               const Result<HostIdentity>& host = this_host(),
                                               const StorePlace& store = {});
  ~ProcessGroup() override = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const noexcept override { return mesh_.rank(); }
  int size() const noexcept override { return mesh_.size(); }
  const routing::NodeMap& nodes() const noexcept override { return nodes_; }
  std::shared_ptr<transport::Network> network() const noexcept override { return nullptr; }
  Result<std::vector<std::string>> all_gather(std::string_view blob,
                                              base::Deadline deadline) override;
  Result<memory::SharedRegion> share(std::size_t bytes, bool committed,
                                     base::Deadline deadline) override;
  Result<std::vector<base::Descriptor>> exchange_files(const Result<base::Descriptor>& mine,
                                                       base::Deadline deadline) override;
  memory::ControlPage& control(int rank) noexcept override {
    return pages_of(pages_, rank).control;
  }
  bool is_dead(int rank) const noexcept override { return monitor_->is_dead(rank); }
  bool has_ended(int rank) const noexcept override { return monitor_->has_ended(rank); }
  bool hung_up(int) const noexcept override { return false; }
  Result<std::unique_ptr<Group>> split(int color, int key, base::Deadline deadline) override;
  void give_up(const Status& why) noexcept override {
    if (!process_.forked()) mesh_.give_up(why);
  }
  Status leave(base::Deadline deadline) override;

 private:
  explicit ProcessGroup(Mesh mesh);
  Status check_process() const;
  memory::RankState state_of(int rank) const noexcept;
  Result<std::vector<std::string>> gather_blobs(ExchangeKind kind, std::string_view blob,
                                                base::Deadline deadline);

  const base::OwnProcess process_;
  Mesh mesh_;
  const routing::NodeMap nodes_;
  memory::SharedRegion pages_;
  std::unique_ptr<PeerMonitor> monitor_;  // Uses mesh_ and pages_: destroyed before them.
};

}  // namespace sluice::bootstrap
