// SPDX-License-Identifier: MIT
// The thread that receives: what it hands over, in which order, and when it looks. The thread sanitizer sees it here, where
// no libfabric is below.
#include "transport/libfabric/receiver.hpp"

#include <gtest/gtest.h>

#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/deadline.hpp"

namespace sluice::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Chunks of one word, which "arrive" in a poll: their immediate is their number.
class Source {
 public:
  explicit Source(std::size_t chunks) : chunks_(chunks) {}

  std::size_t poll(std::span<std::uint32_t> immediates) {
    asked_.store(std::max(asked_.load(), immediates.size()));
    std::size_t count = 0;
    // Now and then nothing, else as many as are asked for, or one.
    if (++polls_ % 3 != 0) {
      const std::size_t most = polls_ % 2 == 0 ? 1 : immediates.size();
      for (; count < most && next_ < chunks_.size(); ++count, ++next_) {
        chunks_[next_] = next_ ^ kMask;  // Plain, as a provider writes it.
        immediates[count] = static_cast<std::uint32_t>(next_);
      }
    }
    seen_.store(next_);
    return count;
  }
  bool whole(std::uint32_t immediate) const { return chunks_[immediate] == (immediate ^ kMask); }
  std::size_t polled() const { return seen_.load(); }
  std::size_t asked() const { return asked_.load(); }

 private:
  static constexpr std::size_t kMask = 0x5a5a5a5a;
  std::vector<std::size_t> chunks_;
  std::size_t next_ = 0;
  unsigned polls_ = 0;
  std::atomic<std::size_t> seen_{0};
  std::atomic<std::size_t> asked_{0};
};

TEST(Receiver, HandsOverAllInOrderWithWhatTheyStandFor) {
  for (const std::size_t waiting : {1U, 3U, 64U, 1000U}) {
    const std::size_t chunks = waiting < 64 ? 200 : 10'000;  // A look for every few.
    Source source(chunks);
    Receiver receiver(waiting, /*alone=*/waiting == 1000,
                      [&](std::span<std::uint32_t> out) { return source.poll(out); });
    std::size_t next = 0;
    std::size_t wrong = 0;
    std::array<std::uint32_t, 7> taken;
    const auto deadline = base::Deadline::after(seconds(60));
    while (next < chunks && !deadline.expired()) {
      const std::size_t count = receiver.take(taken);
      for (std::size_t i = 0; i < count; ++i, ++next) {
        if (taken[i] != next || !source.whole(taken[i])) ++wrong;
      }
      if (count == 0) std::this_thread::yield();
    }
    EXPECT_EQ(next, chunks) << waiting;
    EXPECT_EQ(wrong, 0U) << waiting;
    EXPECT_EQ(receiver.take(taken), 0U);
  }
}

TEST(Receiver, AsksForNoMoreThanThereIsRoomFor) {
  Source source(1000);
  Receiver receiver(16, /*alone=*/false,
                    [&](std::span<std::uint32_t> out) { return source.poll(out); });
  const auto full = base::Deadline::after(seconds(60));
  while (source.polled() < 16 && !full.expired()) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(source.polled(), 16U);
  EXPECT_LE(source.asked(), 16U);
  std::array<std::uint32_t, 5> taken;
  EXPECT_EQ(receiver.take(taken), 5U);
  while (source.polled() < 21 && !full.expired()) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(source.polled(), 21U);
}

/// Nothing comes: how often it is looked for, and what that costs.
class Nothing {
 public:
  std::size_t poll() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    used_ns_.store(used.tv_sec * 1'000'000'000 + used.tv_nsec);
    looks_.fetch_add(1);
    return 0;
  }
  std::int64_t looks() const { return looks_.load(); }
  std::int64_t used_ns() const { return used_ns_.load(); }

 private:
  std::atomic<std::int64_t> looks_{0};
  std::atomic<std::int64_t> used_ns_{0};
};

// A rank at rest: its progress thread looks twice in a nap, and sends a sign of life now and then.
TEST(Receiver, CostsNextToNothingAtRest) {
  for (const bool alone : {false, true}) {
    Nothing nothing;
    Receiver receiver(16, alone, [&](std::span<std::uint32_t> /*out*/) { return nothing.poll(); });
    std::array<std::uint32_t, 4> taken;
    const auto rest = [&](int naps) {
      for (int nap = 0; nap < naps; ++nap) {
        if (nap % 90 == 0) receiver.stir();
        EXPECT_EQ(receiver.take(taken), 0U);
        EXPECT_EQ(receiver.take(taken), 0U);
        std::this_thread::sleep_for(milliseconds(1));
      }
    };
    rest(100);
    const std::int64_t began_ns = base::now_ns();
    const std::int64_t used_ns = nothing.used_ns();
    rest(500);
    EXPECT_LT(nothing.used_ns() - used_ns, (base::now_ns() - began_ns) / 10) << alone;
  }
}

TEST(Receiver, LooksAllTheTimeForWhoAsksAllTheTime) {
  Nothing nothing;
  // Otherwise whoever else runs here may come between any two looks.
  Receiver receiver(16, /*alone=*/true,
                    [&](std::span<std::uint32_t> /*out*/) { return nothing.poll(); });
  std::this_thread::sleep_for(milliseconds(50));  // It naps by now.
  std::array<std::uint32_t, 4> taken;
  const auto deadline = base::Deadline::after(seconds(60));
  bool eager = false;
  receiver.stir();
  while (!eager && !deadline.expired()) {
    const std::int64_t began_ns = base::now_ns();
    const std::int64_t looks = nothing.looks();
    std::int64_t now_ns = began_ns;
    for (; now_ns < began_ns + 5'000'000; now_ns = base::now_ns()) (void)receiver.take(taken);
    // More often than the shortest naps allow.
    eager = nothing.looks() - looks > 2 * (now_ns - began_ns) / 100'000;
  }
  EXPECT_TRUE(eager);
}

TEST(Receiver, EndsWhileItNapsAndWhileItIsFull) {
  for (const bool full : {false, true}) {
    Source source(full ? 1000 : 0);
    Receiver receiver(4, /*alone=*/false,
                      [&](std::span<std::uint32_t> out) { return source.poll(out); });
    std::this_thread::sleep_for(milliseconds(10));
  }
}

}  // namespace
}  // namespace sluice::transport
