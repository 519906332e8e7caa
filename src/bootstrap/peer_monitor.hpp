// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "bootstrap/mesh.hpp"
#include "memory/control_page.hpp"
#include "memory/shared_region.hpp"
#include "sluice/limits.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// What every rank of a process group shares: its control page, and who has seen it leave.
struct GroupPages {
  memory::ControlPage control;
  /// Element p: stored 1 (release) by the monitor of rank p once it knows that this rank has left;
  /// loaded (acquire) by this rank in leave().
  std::array<std::atomic<std::uint32_t>, kMaxRanks> leave_seen_by{};
};

inline GroupPages& pages_of(const memory::SharedRegion& region, int rank) noexcept {
  return *reinterpret_cast<GroupPages*>(region.base(rank));
}

/// A thread that sleeps until a peer's connection or process ends, and says so: dead, or left; and, of
/// the process, that it has ended.
class PeerMonitor {
 public:
  /// Mesh and pages outlive the monitor.
  static Result<std::unique_ptr<PeerMonitor>> start(const Mesh& mesh,
                                                    const memory::SharedRegion& pages);
  ~PeerMonitor();
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  bool is_dead(int rank) const noexcept {
    // Pairs with the release store in note_end().
    return dead_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  bool has_ended(int rank) const noexcept {
    // Pairs with the release store in run().
    return ended_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }

 private:
  PeerMonitor(const Mesh& mesh, const memory::SharedRegion& pages, base::Descriptor stop);
  void run();
  bool note_end(int peer, bool hung_up);

  const Mesh& mesh_;
  const memory::SharedRegion& pages_;
  base::Descriptor stop_;  // An eventfd: written once, by the destructor.
  // Entry 0 is the stop; peer p has the entries 1 + 2p (connection) and 2 + 2p (process). The thread's alone.
  std::vector<pollfd> entries_;
  const pid_t process_;
  std::array<std::atomic<bool>, kMaxRanks> dead_{};
  std::array<std::atomic<bool>, kMaxRanks> ended_{};
  std::thread thread_;
};

}  // namespace sluice::bootstrap
