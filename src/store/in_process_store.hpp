// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <mutex>

#include "store/key_value_table.hpp"
#include "store/store.hpp"

namespace sluice::store {

/// A store of this process. Any thread may call it at any time.
class InProcessStore final : public Store {
 protected:
  Result<Reply> perform(const Request& request, base::Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyValueTable table_;  // Guarded by mutex_.
};

}  // namespace sluice::store
