// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::support {

/// What happens to the bytes of a connection, in each direction by itself.
struct Weather {
  /// From the moment they were sent.
  std::chrono::microseconds delay{0};
  /// So many of 1024 pieces (of at most Wire::kPieceBytes) are lost and sent again: they, and all that
  /// follows them on the connection, are late by stall_min to stall_max.
  int losses = 0;
  std::chrono::microseconds stall_min{0};
  std::chrono::microseconds stall_max{0};
  /// 0: no limit.
  std::uint64_t bytes_per_second = 0;
  /// From when it is set on, what is sent is lost, and nobody is told. Null: never.
  const std::atomic<bool>* dead = nullptr;
};

/// A wire between processes or threads of this machine that is as slow and uneven as one between
/// machines: it takes TCP connections at ports of its own on 127.0.0.1, passes on to other ports there
/// what comes, in both directions, and holds it back as the weather wants. A connection keeps the order
/// of its bytes, as TCP does; of two, one overtakes the other. A thread of its own carries everything.
class Wire {
 public:
  static constexpr std::size_t kPieceBytes = 4096;

  /// `seed`: of the losses.
  static Result<std::unique_ptr<Wire>> start(std::uint64_t seed);
  /// Drops all connections, once what they have taken is passed on.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// A port whose connections lead to `port`. By any thread.
  Result<std::uint16_t> lead_to(std::uint16_t port, const Weather& weather);

  /// What it has taken by now; it loses time, not bytes.
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t losses() const noexcept { return losses_; }

 private:
  class Loop;

  Wire(base::Descriptor stop, std::uint64_t seed);

  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> losses_{0};
  base::Descriptor wake_;  // An eventfd: there is a new port, or the end.
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace sluice::support
