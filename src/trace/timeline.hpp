// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"
#include "trace/phase.hpp"

namespace sluice::trace {

/// Who does something: of what does things side by side, `track` says which; `role` says what it is there for.
struct Actor {
  int track = 0;
  const char* role = "rank";
  int multiprocessor = -1;  ///< On a GPU; below zero: not known.
};

/// The phases of one rank, in order, while recording is on. Bounded: when full, it stops recording.
class Timeline {
 public:
  /// Anew; 0: no longer.
  void start(std::size_t events_max) {
    on_ = false;
    events_ = std::vector<Event>();  // Its memory, too, which is the bound.
    events_.reserve(events_max);
    dropped_ = 0;
    on_ = events_max > 0;
  }
  bool on() const noexcept { return on_; }
  void add(Phase phase, const char* operation, std::uint64_t epoch, std::int64_t begin_ns,
           std::int64_t end_ns, const Actor& actor = {}) noexcept {
    if (events_.size() == events_.capacity()) {
      ++dropped_;
      return;
    }
    events_.push_back({begin_ns, end_ns, epoch, operation, actor, phase});
  }
  /// Chrome trace format, which Perfetto reads: one process per rank, microseconds since base_ns.
  Status write(const std::string& path, int rank) const;

 private:
  struct Event {
    std::int64_t begin_ns;
    std::int64_t end_ns;
    std::uint64_t epoch;
    const char* operation;  // "dispatch" or "combine"
    Actor actor;
    Phase phase;
  };

  std::vector<Event> events_;
  std::size_t dropped_ = 0;
  bool on_ = false;
};

/// Records the time from construction to destruction, if the timeline is on.
class Span {
 public:
  Span(Timeline& timeline, Phase phase, const char* operation, std::uint64_t epoch) noexcept
      : timeline_(timeline.on() ? &timeline : nullptr),
        begin_ns_(timeline_ != nullptr ? base::now_ns() : 0),
        operation_(operation),
        epoch_(epoch),
        phase_(phase) {}
  ~Span() {
    if (timeline_ != nullptr) {
      timeline_->add(phase_, operation_, epoch_, begin_ns_, base::now_ns());
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Timeline* timeline_;
  std::int64_t begin_ns_;
  const char* operation_;
  std::uint64_t epoch_;
  Phase phase_;
};

}  // namespace sluice::trace
