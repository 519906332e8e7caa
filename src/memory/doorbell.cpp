// SPDX-License-Identifier: MIT
//
// Why a ring is never lost. Four accesses matter, all sequentially consistent, so there is one
// order S of all of them:
//
//   ringer:  (R1) word += 1      (R2) load sleepers
//   sleeper: (S1) sleepers += 1  (S2) load word  [look at the condition]  (S3) futex wait
//
// If R2 reads a count that includes S1, the ringer calls the kernel's wake. Otherwise R2 is before
// S1 in S, hence R1 before S2, and the sleeper's S2 reads the new word; S2 then also acquires what
// the ringer stored before R1, so the look at the condition after it sees the signal.
// Where the ringer does wake, it either comes before the kernel's own comparison of the word in S3
// (which is made under the lock that the wake takes, after R1: the word differs, no sleep) or after
// it (the sleeper is queued and is woken). There is no third place.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <limits>

#include "memory/control_page.hpp"

namespace sluice::memory {
namespace {

// The shared form of the call: the word may be mapped by several processes, at several addresses.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) noexcept {
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  return ::syscall(SYS_futex, static_cast<void*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Doorbell::ring() noexcept {
  word.fetch_add(1, std::memory_order_seq_cst);  // R1; pairs with the load in prepare().
  // R2; pairs with the increment in Sleeper's constructor.
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

Sleeper::Sleeper(Doorbell& bell) noexcept : bell_(bell) {
  bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);  // S1; pairs with the load in ring().
  prepare();
}

// Relaxed: a ringer that still reads the higher count only makes one needless call.
Sleeper::~Sleeper() {
  bell_.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Sleeper::prepare() noexcept {
  seen_ = bell_.word.load(std::memory_order_seq_cst);  // S2; pairs with the increment in ring().
}

void Sleeper::sleep(std::int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / kSecond);
  timeout.tv_nsec = static_cast<long>(timeout_ns % kSecond);
  const bool forever = timeout_ns == std::numeric_limits<std::int64_t>::max();
  // S3. Whatever ends it (ring, new word, timeout, signal), the caller looks at its condition.
  futex(bell_.word, FUTEX_WAIT, seen_, forever ? nullptr : &timeout);
}

}  // namespace sluice::memory
