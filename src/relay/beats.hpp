// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/mutants.hpp"
#include "base/near_wrap.hpp"
#include "transport/message.hpp"

namespace sluice::relay {

/// The beats of one rank to another, and which of them were echoed. Each has a number, which its echo has, too: so it does not
/// matter which way they take, nor which of them overtakes which.
///
/// An echo says that the other rank has heard this one since its beat was sent, and until the patience after that gives it up
/// for nothing: a *lease* (docs/relay.md). A beat without an echo for the patience says that not all that goes to the other
/// rank, or comes from there, arrives, whatever became of later beats: of several rails one may carry nothing any more.
class Beats {
 public:
  /// Before the other rank has begun, so many may be on their way: all of them are answered at once when it does.
  static constexpr std::size_t kFirst = 10;
  /// And after that as many as have numbers of their own.
  static constexpr std::size_t kMost = transport::Signal::kNumbers;

  /// `begin_ns`: by then the other rank has begun.
  Beats(std::int64_t patience_ns, std::int64_t begin_ns)
      : patience_ns_(patience_ns), begin_ns_(begin_ns) {}

  /// The number of one that is sent now; nothing: enough are on their way.
  std::optional<std::uint32_t> send(std::int64_t now_ns) {
    if (open_.size() == (begun_ ? kMost : kFirst)) return std::nullopt;
    sent_ns_ = now_ns;
    open_.push_back({now_ns, false});
    return next_++;
  }

  /// `number`: mod kMost. That of no beat that waits for its echo: nothing.
  void take_echo(std::uint32_t number, std::int64_t now_ns) {
    const std::size_t later = (next_ - 1 - number) % kMost;
    if (later >= open_.size()) return;
    Beat& beat = open_[open_.size() - 1 - later];
    beat.echoed = true;
    if (!begun_) begin_ns_ = now_ns;
    begun_ = true;
    // Less a little: clocks do not run alike.
    lease_ns_ = std::max(lease_ns_, beat.sent_ns + patience_ns_ - patience_ns_ / 20);
    const bool for_all = base::mutant(base::Mutant::echo_for_all);
    while (!open_.empty() && (for_all || open_.front().echoed)) open_.pop_front();
  }

  /// What has arrived before it is what the other rank's node has sent.
  std::int64_t lease_ns() const noexcept { return lease_ns_; }

  /// Whether an echo is missing; or no beat was sent for so long, by a rank that has left.
  bool overdue(std::int64_t now_ns) const noexcept {
    const std::int64_t since_ns = open_.empty() ? sent_ns_ : open_.front().sent_ns;
    return now_ns - std::max(since_ns, begin_ns_) > patience_ns_;
  }

 private:
  struct Beat {
    std::int64_t sent_ns;
    bool echoed;
  };

  const std::int64_t patience_ns_;
  std::int64_t begin_ns_;  // When the other rank began, or by when it has to.
  bool begun_ = false;     // An echo has come.
  std::deque<Beat> open_;  // From the oldest one without an echo on.
  std::uint32_t next_ = base::kNearWrap;
  std::int64_t sent_ns_ = 0;  // The newest one.
  std::int64_t lease_ns_ = 0;
};

}  // namespace sluice::relay
