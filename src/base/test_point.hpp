// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

namespace sluice::base {

/// Places where tests delay, kill or freeze a rank. Passed once per operation and peer at most.
enum class TestPoint {
  before_tell,
  before_guard,
  before_payload,
  before_publish,  // The payload of `peer` is written, its cell is not.
  after_publish,
  before_await,
  before_read,      // Everything awaited is there, nothing is read.
  before_done,      // Everything is read, nothing is told.
  progress,         // Of a rank's progress thread, between two looks.
  before_progress,  // There is none yet.
};

using TestPointHook = void (*)(TestPoint point, int rank, int peer);

/// Null, but in tests. Set before ranks run.
inline std::atomic<TestPointHook> test_point_hook{nullptr};

inline void test_point(TestPoint point, int rank, int peer = -1) {
  if (const TestPointHook hook = test_point_hook.load(std::memory_order_relaxed)) {
    hook(point, rank, peer);
  }
}

}  // namespace sluice::base
