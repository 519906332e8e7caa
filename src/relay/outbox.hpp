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

/// Posts rows whose slots `present`, as messages of RelayLayout::group_rows slots each.
/// `post(first, end)` adds the rows of a run to the message that was begun.
template <typename Present, typename Begin, typename Add>
void post_groups(Postings& postings, int group_rows, int slots, Present&& present, Begin&& begin,
                 Add&& add) {
  for (int group = 0; group * group_rows < slots; ++group) {
    const int first = group * group_rows;
    const int end = std::min(slots, first + group_rows);
    bool begun = false;
    for_each_run(first, end, present, [&](int run, int after) {
      if (!begun) begin(group);
      begun = true;
      add(run, after);
    });
    if (begun) postings.end();
  }
}

/// The rows of a run: in one piece, where they lie as far apart here as there.
inline void add_rows(Postings& postings, transport::Region from, std::uint64_t from_offset,
                     std::uint64_t from_stride, std::uint64_t to_offset, std::uint64_t to_stride,
                     std::uint64_t row_bytes, int rows) {
  const auto count = static_cast<std::uint64_t>(rows);
  if (from_stride == to_stride) {
    postings.add(from, from_offset, to_offset, (count - 1) * to_stride + row_bytes);
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    postings.add(from, from_offset + i * from_stride, to_offset + i * to_stride, row_bytes);
  }
}

}  // namespace sluice::relay
