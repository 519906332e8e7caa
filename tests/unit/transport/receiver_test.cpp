// SPDX-License-Identifier: MIT
// The thread that receives: what it hands over, in which order, and when it looks. The thread sanitizer sees it here, where
// no libfabric is below.
#include "transport/libfabric/receiver.hpp"

#include <gtest/gtest.h>

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
  constexpr std::size_t kChunks = 50'000;
  for (const std::size_t waiting : {1U, 3U, 64U, 1000U}) {
    Source source(kChunks);
    Receiver receiver(waiting, /*alone=*/false,
                      [&](std::span<std::uint32_t> out) { return source.poll(out); });
    std::size_t next = 0;
    std::size_t wrong = 0;
    std::array<std::uint32_t, 7> taken;
    const auto deadline = base::Deadline::after(seconds(60));
    while (next < kChunks && !deadline.expired()) {
      const std::size_t count = receiver.take(taken);
      for (std::size_t i = 0; i < count; ++i, ++next) {
        if (taken[i] != next || !source.whole(taken[i])) ++wrong;
      }
      if (count == 0) std::this_thread::yield();
    }
    EXPECT_EQ(next, kChunks) << waiting;
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

TEST(Receiver, NapsWhenNothingComesAndNotWhenItIsStirred) {
  std::atomic<std::int64_t> looks{0};
  Receiver receiver(16, /*alone=*/false, [&](std::span<std::uint32_t> /*out*/) -> std::size_t {
    ++looks;
    return 0;
  });
  const auto looks_in = [&](milliseconds time, bool stirs) {
    const std::int64_t before = looks;
    const auto end = base::Deadline::after(time);
    while (!end.expired()) {
      if (stirs) receiver.stir();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return looks - before;
  };
  (void)looks_in(milliseconds(200), false);  // From here on it naps for a millisecond.
  const std::int64_t at_rest = looks_in(milliseconds(200), false);
  EXPECT_LE(at_rest, 400);
  EXPECT_GE(at_rest, 1);
  EXPECT_GT(looks_in(milliseconds(200), true), 4 * at_rest);
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
