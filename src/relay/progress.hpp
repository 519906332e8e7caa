// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

#include "relay/inbox.hpp"
#include "relay/node_sums.hpp"
#include "relay/outbox.hpp"
#include "relay/postings.hpp"
#include "relay/presence.hpp"
#include "relay/site.hpp"
#include "transport/transport.hpp"

namespace sluice::relay {

/// What a rank's progress thread does, step by step. No step waits.
class Progress {
 public:
  Progress(const Site& site, transport::Endpoint& endpoint, std::chrono::nanoseconds patience);

  /// Whether anything happened.
  bool step();
  /// This rank makes no more calls.
  void close() { presence_.say_goodbye(); }
  /// After close(): whether nobody needs this rank any more.
  bool finished() const noexcept;

 private:
  bool poll(std::int64_t now_ns);
  void tell_flushed();
  void tell_flushed(protocol::Kind kind, std::uint64_t posted);

  const Site& site_;
  transport::Endpoint& endpoint_;
  Postings postings_;
  Outbox outbox_;
  NodeSums sums_;
  Inbox inbox_;
  Presence presence_;
};

}  // namespace sluice::relay
