// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/group.hpp"
#include "engine/cuda/kernels.hpp"
#include "relay/relay.hpp"

namespace sluice::engine::cuda {

/// What the host tells kernels that wait long, and their peers of them: who has died, and who lives.
class Watch {
 public:
  /// relay: null on one node.
  Watch(std::shared_ptr<bootstrap::Group> group, const relay::Relay* relay, Board* board);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  /// The last sign of life of a peer, and when it was seen.
  struct Heard {
    std::uint64_t beats = 0;
    std::int64_t at_ns = 0;
  };

  void run();
  bool elsewhere(int rank) const noexcept;
  bool is_gone(int rank) const noexcept;
  bool has_left(int rank) const noexcept;
  bool says(std::size_t offset) const noexcept;
  std::uint64_t beats_of(int rank) const noexcept;
  void listen(int rank, Heard& heard);

  std::shared_ptr<bootstrap::Group> group_;
  const relay::Relay* relay_;
  Board* board_;
  std::vector<Heard> heard_;  // The thread's.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace sluice::engine::cuda
