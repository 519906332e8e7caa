// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::relay {

/// What this rank's engine has published for other nodes, as messages: the heads of dispatches and of
/// given weights, with the rows of dispatches, one for each (token, node); and answers that go straight
/// home, one record for each (token, rank).
class Outbox {
 public:
  Outbox(const Site& site, Postings& postings) : site_(site), postings_(postings) {}

  /// Takes what was published since; whether anything was.
  bool take();
  /// The last epoch whose messages have all been posted.
  std::uint64_t posted(protocol::CellKind kind) const noexcept {
    return taken_[static_cast<std::size_t>(kind)];
  }

 private:
  std::uint64_t published(protocol::CellKind kind) const noexcept;
  bool take(protocol::CellKind kind, std::uint64_t published);
  void post_heads(std::uint64_t epoch, bool weights);
  void post_rows(int peer, const window::RelayHead& head, const std::byte* headers);
  void post_answers(std::uint64_t epoch);
  void post_answer(int home, std::uint64_t epoch);

  const Site& site_;
  Postings& postings_;
  std::array<std::uint64_t, protocol::kCellKinds> taken_{};
};

/// Posts one group of the rows for a home, those of slots with a mask, if there are any: runs of them
/// in one piece. `rows`: where row 0 lies in this rank's window. Of `head` the epoch, slots and row
/// bytes count.
void post_answer_rows(const Site& site, Postings& postings, int home,
                      const window::AnswerHead& head, int group, const std::uint32_t* masks,
                      std::size_t rows);

}  // namespace sluice::relay
