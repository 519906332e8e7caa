// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/own_process.hpp"
#include "memory/control_page.hpp"

namespace sluice::transport {

/// A thread that does nothing but receive, for networks whose bytes are moved by the processor that polls: what comes
/// is there while the progress thread still sends (a put of a few KB keeps it for 7 us on TCP, and the poll of such a
/// network is a call to the system). It hands immediates, in the order in which they were found, to one other thread.
///
/// **The ring.** One thread writes, one reads. head: immediates that were put in; the receiver stores it with release
/// when they are there, take() loads it with acquire: so with an immediate the reader sees all that the receiver's poll
/// had written before it, the chunk above all. tail: immediates that were taken out; take() stores it with release
/// after reading them, the receiver loads it with acquire before it uses their places again. The receiver asks for no
/// more immediates than there is room for.
/// **When it looks.** As eagerly as who takes: that thread knows signs of life from what is awaited, and rests when nothing
/// but signs has come for a while. While it asks every few microseconds the receiver goes on looking; otherwise for
/// kEagerNs after something has come, or is to come (stir()). Then it naps, for a hundredth of the time at rest.
class Receiver {
 public:
  /// Immediates of chunks that can be read, of which it writes so many. Called by the thread alone, until the receiver is
  /// destroyed.
  using Poll = std::function<std::size_t(std::span<std::uint32_t> immediates)>;

  /// waiting_max: immediates that may wait for take() at once. alone: it has a processor to itself, and keeps it between
  /// two looks. Throws std::system_error where there are no more threads.
  Receiver(std::size_t waiting_max, bool alone, Poll poll);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// By one thread.
  std::size_t take(std::span<std::uint32_t> immediates) noexcept;
  /// Something is going to come: if it naps, it naps no more for now. By the thread that takes.
  void stir() noexcept;

 private:
  static constexpr std::int64_t kEagerNs = 200'000;
  // Who takes so many times within an eighth of that is eager.
  static constexpr std::int64_t kSampleNs = kEagerNs / 8;
  static constexpr std::uint64_t kEagerTakes = 4;
  static constexpr std::int64_t kNapNsMin = 100'000;
  static constexpr std::int64_t kNapNsMax = 500'000;
  static constexpr std::int64_t kNapParts = 100;
  static constexpr unsigned long kTimerSlackNs = 1000;
  static constexpr std::size_t kAtOnce = 64;

  void run() noexcept;
  std::size_t look() noexcept;

  const Poll poll_;
  const bool alone_;
  std::vector<std::uint32_t> ring_;  // A power of two.
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  std::uint64_t seen_ = 0;  // Of head_, by take().
  std::atomic<std::uint64_t> takes_{0};
  alignas(64) std::atomic<bool> stirred_{false};
  std::atomic<bool> stopping_{false};
  memory::Doorbell bell_;
  const base::OwnProcess process_;
  std::thread thread_;
};

}  // namespace sluice::transport
