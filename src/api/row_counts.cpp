// SPDX-License-Identifier: MIT
#include "api/row_counts.hpp"

#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "api/guarded.hpp"
#include "base/deadline.hpp"

namespace sluice {
namespace api {

void write_row_counts(const Received& received, int local_experts, const TensorView& row_counts) {
  if (!row_counts.given()) return;
  auto* const words = static_cast<std::int64_t*>(row_counts.data);
  // What a peer that made another call would have sent is not in the handle's counts.
  const StatusCode code = received.status.code();
  const bool come = code == StatusCode::ok || code == StatusCode::mismatch;
  const bool known = come && received.handle.given() && received.handle.valid();
  const auto* const counts =
      known ? static_cast<const std::int32_t*>(received.handle.counts().data) : nullptr;
  words[1] = known ? received.handle.rows() : 0;
  for (int expert = 0; expert < local_experts; ++expert) {
    words[2 + expert] = counts != nullptr ? counts[expert] : 0;
  }
  // Pairs with await_row_counts(), of another thread perhaps.
  std::atomic_ref<std::int64_t>(words[0]).store(static_cast<std::int64_t>(received.epoch),
                                                std::memory_order_release);
}

}  // namespace api

Status await_row_counts(const TensorView& row_counts, std::uint64_t epoch,
                        std::chrono::nanoseconds timeout) {
  return api::guarded([&]() -> Status {
    if (!row_counts.given() || row_counts.data == nullptr || row_counts.dtype != DType::i64) {
      return {StatusCode::invalid_argument,
              "await_row_counts: expected the i64 tensor that was DispatchOutputs::row_counts"};
    }
    if (epoch == 0) {
      return {StatusCode::failed_precondition,
              "await_row_counts: dispatch 0, expected one that was made"};
    }
    const std::atomic_ref<std::int64_t> first(*static_cast<std::int64_t*>(row_counts.data));
    const base::Deadline deadline = base::Deadline::after(timeout);
    constexpr unsigned kPollsPerLook = 256;
    for (unsigned polls = 0;; ++polls) {
      // Pairs with write_row_counts(), or with the kernel of that name.
      const std::int64_t seen = first.load(std::memory_order_acquire);
      if (seen == static_cast<std::int64_t>(epoch)) return {};
      if (polls % kPollsPerLook != kPollsPerLook - 1) continue;
      if (deadline.expired()) {
        return {StatusCode::deadline_exceeded,
                fmt::format(
                    "await_row_counts: those of dispatch {} had not come after {} ms (seen: "
                    "those of {})",
                    epoch, std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(),
                    seen)};
      }
      std::this_thread::yield();
    }
  });
}

}  // namespace sluice
