// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bootstrap/group.hpp"
#include "transport/transport.hpp"

namespace sluice::bench {

/// What joins the boards of nodes that share no memory: a common start, by an endpoint of its own, and an exchange
/// of what ranks left on their board. The first rank of each node *leads* it.
class BoardBridge {
 public:
  /// Collective; the group has several nodes.
  static Result<std::unique_ptr<BoardBridge>> open(bootstrap::Group& group, double deadline_s);

  int leader() const noexcept { return leader_; }
  int ranks_here() const noexcept;
  bool here(int rank) const noexcept;

  /// Of leaders: returns when all of them have called it as often; nodes go on within the time of one message of each other.
  /// `between` is called over and over meanwhile, and ends the wait if it is not ok. `unavailable` if a rank of
  /// another node has given up.
  Status meet(const std::function<Status()>& between);
  /// Of leaders: a rank of this node gives up; ends the others' meet().
  void fail() noexcept;

  /// Collective: brings here what lies in the pieces [R], equally long, of ranks of other nodes.
  Status spread(std::span<const std::span<std::byte>> pieces);

 private:
  BoardBridge(bootstrap::Group& group, double deadline_s);

  Status put(int leader, bool failed, const std::function<Status()>& between);
  Status look();
  Status wait_for(int leader, std::uint64_t times, const std::function<Status()>& between);

  bootstrap::Group& group_;
  const double deadline_s_;
  const int leader_;
  std::vector<int> leaders_;                           // Of all nodes.
  std::unique_ptr<std::array<std::byte, 64>> memory_;  // Used by the endpoint: destroyed after it.
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::vector<std::uint64_t> came_;  // [R] how often a leader has said so
  std::uint64_t times_ = 0;
  int failed_ = -1;  // A leader that has said that its node gives up.
};

}  // namespace sluice::bench
