// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/deadline.hpp"
#include "sluice/status.hpp"

namespace sluice::store {

/// Which of a server's counted clients are done with it; written by the server's thread, awaited by
/// the one that owns the server.
class Attendance {
 public:
  explicit Attendance(int clients) : awaited_(clients), present_(clients) {}

  void note_goodbye();
  /// The client's connection ended without a goodbye.
  void note_loss(int client);
  /// What waiting clients are told about a loss; nothing while there is none.
  std::optional<Status> loss() const;

  /// Until every client has said goodbye, or one is lost.
  Status wait(base::Deadline deadline);
  /// Until every client has said goodbye or is lost: no request comes any more. False: the deadline passed before.
  bool wait_until_gone(base::Deadline deadline);

 private:
  std::optional<Status> loss_unlocked() const;
  template <typename Condition>
  bool wait_for(std::unique_lock<std::mutex>& lock, base::Deadline deadline,
                const Condition& condition);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  int awaited_;  // Whose goodbye has not come.
  int present_;
  std::optional<int> lost_;
};

}  // namespace sluice::store
