// SPDX-License-Identifier: MIT
#include "store/in_process_store.hpp"

#include <chrono>
#include <utility>

namespace sluice::store {

Result<Reply> InProcessStore::perform(const Request& request, base::Deadline deadline) {
  Request waiting = request;
  std::unique_lock lock(mutex_);
  for (;;) {
    auto reply = table_.apply(waiting);
    if (reply.has_value()) {
      if (!request.waits()) changed_.notify_all();
      return std::move(*reply);
    }
    if (deadline.expired()) return key_deadline_status(request.key);
    if (deadline.is_never()) {
      changed_.wait(lock);
    } else {
      const std::chrono::steady_clock::time_point at{std::chrono::nanoseconds(deadline.at_ns())};
      changed_.wait_until(lock, at);
    }
  }
}

}  // namespace sluice::store
