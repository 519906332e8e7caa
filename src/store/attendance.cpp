// SPDX-License-Identifier: MIT
#include "store/attendance.hpp"

#include <chrono>
#include <string>

namespace sluice::store {

void Attendance::note_goodbye() {
  const std::lock_guard lock(mutex_);
  --awaited_;
  --present_;
  changed_.notify_all();
}

void Attendance::note_loss(int client) {
  const std::lock_guard lock(mutex_);
  if (!lost_.has_value()) lost_ = client;
  --present_;
  changed_.notify_all();
}

std::optional<Status> Attendance::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_unlocked();
}

std::optional<Status> Attendance::loss_unlocked() const {
  if (!lost_.has_value()) return std::nullopt;
  return Status(StatusCode::unavailable, "rank " + std::to_string(*lost_) +
                                             " ended, or gave up, and has not left its world");
}

template <typename Condition>
bool Attendance::wait_for(std::unique_lock<std::mutex>& lock, base::Deadline deadline,
                          const Condition& condition) {
  if (deadline.is_never()) {
    changed_.wait(lock, condition);
    return true;
  }
  const std::chrono::steady_clock::time_point at{std::chrono::nanoseconds(deadline.at_ns())};
  return changed_.wait_until(lock, at, condition);
}

bool Attendance::wait_until_gone(base::Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait_for(lock, deadline, [&] { return present_ <= 0; });
}

Status Attendance::wait(base::Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_for(lock, deadline, [&] { return awaited_ <= 0 || lost_.has_value(); });
  if (awaited_ <= 0) return {};
  if (auto loss = loss_unlocked(); loss.has_value()) return *loss;
  return Status(StatusCode::deadline_exceeded,
                std::to_string(awaited_) + " ranks were not done with the rendezvous in time");
}

}  // namespace sluice::store
