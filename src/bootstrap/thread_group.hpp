// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/group.hpp"
#include "bootstrap/thread_rendezvous.hpp"

namespace sluice::bootstrap {

/// One rank of a world whose ranks are threads of this process. Shared regions are one ordinary
/// mapping each, at the same address for all ranks, so that a thread sanitizer sees every access.
class ThreadGroup final : public Group {
 public:
  /// The groups of all ranks of a new world; element r belongs to the thread of rank r.
  static std::vector<std::unique_ptr<Group>> create_all(int size);

  ThreadGroup(std::shared_ptr<ThreadRendezvous> rendezvous, int rank) noexcept;
  ~ThreadGroup() override;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return rendezvous_->size(); }
  Result<std::vector<std::string>> all_gather(std::string_view blob,
                                              base::Deadline deadline) override;
  Result<memory::SharedRegion> share(std::size_t bytes, bool committed,
                                     base::Deadline deadline) override;
  Result<std::vector<base::Descriptor>> exchange_files(const Result<base::Descriptor>& mine,
                                                       base::Deadline deadline) override;
  memory::ControlPage& control(int rank) noexcept override { return rendezvous_->page(rank); }
  bool is_dead(int rank) const noexcept override { return rendezvous_->is_dead(rank); }
  Result<std::unique_ptr<Group>> split(int color, int key, base::Deadline deadline) override;
  Status leave(base::Deadline deadline) override;

 private:
  std::shared_ptr<ThreadRendezvous> rendezvous_;
  int rank_;
};

}  // namespace sluice::bootstrap
