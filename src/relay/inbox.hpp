// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "relay/site.hpp"
#include "transport/message.hpp"

namespace sluice::relay {

/// What comes from other nodes. Rows lie where their readers take them from; this rank writes into the
/// lanes of its node's ranks what a neighbour would have written there: headers, weights, cells.
class Inbox {
 public:
  explicit Inbox(const Site& site);

  /// One chunk of a message, not a sign.
  void chunk(std::uint32_t immediate);

 private:
  /// Rows of a message sequence that have come: by group, until its head says which are to come.
  struct Groups {
    std::uint64_t epoch = 0;  // 0: its head has not come.
    std::vector<std::uint8_t> come;
    int next = 0;       // dispatch: all before it are here or not to come.
    int missing = 0;    // answers
    bool sums = false;  // answers: of a node
  };

  void take_head(int source, bool weights, int bank);
  void expand(const window::RelayHead& head, int source, bool weights);
  void write_header(const window::RelayHead& head, int source, int header, bool weights);
  void take_rows(int source, int stage, int group);
  void advance(int source, int stage);
  void take_answer(int source, bool sums, int bank);
  void take_answer_rows(int source, int stage, int group);
  void publish_answer(int source, Groups& groups);
  void publish_cells(int source, const window::AnswerHead& head);

  Groups& dispatch_groups(int source, int stage) noexcept;
  Groups& answer_groups(int source, int stage) noexcept;
  const window::AnswerHead& answer_head(int source, bool sums, int bank) const noexcept;

  const Site& site_;
  transport::Arrivals arrivals_;
  std::vector<Groups> dispatches_;  // [R][Dd]
  std::vector<Groups> answers_;     // [R][Da]
  std::vector<int> slots_;          // Of a head being expanded: the next one at each neighbour.
};

}  // namespace sluice::relay
