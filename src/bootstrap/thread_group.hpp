// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/group.hpp"
#include "bootstrap/thread_rendezvous.hpp"

namespace sluice::bootstrap {

/// One rank of a world whose ranks are threads of this process. Shared regions are one ordinary
/// mapping each, at the same address for all ranks, so that a thread sanitizer sees every access.
/// With several nodes ranks of different ones share nothing but collective calls and the network.
class ThreadGroup final : public Group {
 public:
  /// The groups of all ranks of a new world; element r belongs to the thread of rank r.
  static std::vector<std::unique_ptr<Group>> create_all(int size);
  static std::vector<std::unique_ptr<Group>> create_all(
      const routing::NodeMap& nodes, const std::shared_ptr<transport::Network>& network);

  ThreadGroup(std::shared_ptr<ThreadRendezvous> rendezvous, int rank, routing::NodeMap nodes,
              std::shared_ptr<transport::Network> network);
  ~ThreadGroup() override;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return rendezvous_->size(); }
  const routing::NodeMap& nodes() const noexcept override { return nodes_; }
  std::shared_ptr<transport::Network> network() const noexcept override { return network_; }
  Result<std::vector<std::string>> all_gather(std::string_view blob,
                                              base::Deadline deadline) override;
  Result<memory::SharedRegion> share(std::size_t bytes, bool committed,
                                     base::Deadline deadline) override;
  Result<std::vector<base::Descriptor>> exchange_files(const Result<base::Descriptor>& mine,
                                                       base::Deadline deadline) override;
  memory::ControlPage& control(int rank) noexcept override {
    return nodes_.together(rank, rank_) ? rendezvous_->page(rank) : *elsewhere_;
  }
  bool is_dead(int rank) const noexcept override {
    return nodes_.together(rank, rank_) && rendezvous_->is_dead(rank);
  }
  bool has_ended(int) const noexcept override { return false; }
  bool hung_up(int) const noexcept override { return false; }
  Result<std::unique_ptr<Group>> split(int color, int key, base::Deadline deadline) override;
  void give_up(const Status& why) noexcept override { rendezvous_->give_up(rank_, why); }
  Status leave(base::Deadline deadline) override;

 private:
  std::shared_ptr<ThreadRendezvous> rendezvous_;
  int rank_;
  routing::NodeMap nodes_;
  std::shared_ptr<transport::Network> network_;
  std::unique_ptr<memory::ControlPage> elsewhere_;  // Of all ranks of other nodes.
};

}  // namespace sluice::bootstrap
