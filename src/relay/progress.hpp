// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "relay/postings.hpp"
#include "relay/presence.hpp"
#include "relay/site.hpp"
#include "relay/traffic.hpp"
#include "transport/transport.hpp"

namespace sluice::relay {

/// What a rank's progress thread does, step by step. No step waits.
class Progress {
 public:
  Progress(const Site& site, transport::Endpoint& endpoint, std::chrono::nanoseconds patience,
           const MakeTraffic& make_traffic);

  /// Whether anything happened but signs of life.
  bool step();
  /// This rank makes no more calls.
  void close() { presence_.say_goodbye(); }
  /// After close(): whether nobody needs this rank any more.
  bool finished();

 private:
  bool poll();
  void take_accusation(const window::RelaySlot& slot);
  void take_chunks();
  void tell_flushed(protocol::Kind kind);
  bool has_told(int peer);

  /// A chunk that has arrived, but is not known to be what its source has sent.
  struct Doubtful {
    int source;
    std::uint32_t immediate;
    std::int64_t arrived_ns;
  };

  const Site& site_;
  transport::Endpoint& endpoint_;
  const std::int64_t patience_ns_;
  std::int64_t stepped_ns_ = 0;
  std::vector<Doubtful> doubtful_;
  Postings postings_;
  std::unique_ptr<Traffic> traffic_;
  Presence presence_;
  /// Behind all that a peer is to be told, goodbye included: so many messages.
  struct Told {
    std::optional<std::uint64_t> mark;
    std::uint64_t messages = 0;
  };
  std::vector<Told> told_;  // [R]
};

}  // namespace sluice::relay
