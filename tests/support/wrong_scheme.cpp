// SPDX-License-Identifier: MIT
#include "support/wrong_scheme.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "support/forwarding_endpoint.hpp"
#include "transport/message.hpp"

namespace sluice::support {
namespace {

using transport::Chunk;
using transport::Event;
using transport::Posted;
using transport::Signal;

class RunningCount final : public ForwardingEndpoint {
 public:
  RunningCount(std::unique_ptr<Endpoint> inner, int rank)
      : ForwardingEndpoint(std::move(inner)), rank_(rank) {}

  /// On its way a slot's number says whose chunk it is, too.
  Posted put(const Chunk& chunk) override {
    Signal signal = Signal::decode(chunk.immediate);
    if (signal.slot >= kSlots || rank_ >= kUncounted / kSlots) {
      std::fprintf(stderr, "wrong_scheme: slot %d of rank %d\n", signal.slot, rank_);
      std::abort();
    }
    // A chunk without bytes is no message that anybody counts.
    signal.slot += chunk.bytes == 0 ? kUncounted : rank_ * kSlots;
    Chunk marked = chunk;
    marked.immediate = signal.encode();
    return ForwardingEndpoint::put(marked);
  }

  std::size_t poll(std::span<Event> events) override {
    const std::size_t count = ForwardingEndpoint::poll(events);
    for (Event& event : events.first(count)) {
      if (event.kind == Event::Kind::arrived) event.immediate = taken_for(event.immediate);
    }
    return count;
  }

 private:
  static constexpr int kSlots = 1 << 14;
  static constexpr int kUncounted = 32 * kSlots;
  struct Message {
    Signal signal;
    int to_come = 0;      // of its own chunks
    int to_be_taken = 0;  // for its own
  };

  std::uint32_t taken_for(std::uint32_t immediate) {
    Signal signal = Signal::decode(immediate);
    if (signal.slot >= kUncounted) {
      signal.slot -= kUncounted;
      return signal.encode();
    }
    std::vector<Message>& begun = begun_[signal.slot / kSlots];
    signal.slot %= kSlots;
    auto own = std::find_if(begun.begin(), begun.end(), [&](const Message& message) {
      return message.to_come > 0 && message.signal.encode() == signal.encode();
    });
    if (own == begun.end()) {
      own = begun.insert(own, {signal, signal.chunks, signal.chunks});
    }
    --own->to_come;
    const auto first = std::find_if(begun.begin(), begun.end(),
                                    [](const Message& message) { return message.to_be_taken > 0; });
    --first->to_be_taken;
    const std::uint32_t taken = first->signal.encode();
    std::erase_if(begun, [](const Message& message) {
      return message.to_come == 0 && message.to_be_taken == 0;
    });
    return taken;
  }

  int rank_;
  std::map<int, std::vector<Message>> begun_;  // By source, in the order of their first chunks.
};

class LastChunk final : public ForwardingEndpoint {
 public:
  using ForwardingEndpoint::ForwardingEndpoint;

  Posted put(const Chunk& chunk) override {
    if (chunk.bytes == 0) return ForwardingEndpoint::put(chunk);  // A message by itself.
    Signal signal = Signal::decode(chunk.immediate);
    int& seen = put_[{chunk.peer, signal.slot}];
    const bool last = seen + 1 == signal.chunks;
    Chunk other = chunk;
    if (last) {
      signal.chunks = 1;
    } else {
      signal.use += Signal::kUses / 2;  // Nobody awaits it.
    }
    other.immediate = signal.encode();
    const Posted posted = ForwardingEndpoint::put(other);
    if (posted == Posted::yes) seen = last ? 0 : seen + 1;
    return posted;
  }

 private:
  std::map<std::pair<int, int>, int> put_;  // Chunks of a message, by peer and slot.
};

class Network final : public transport::Network {
 public:
  Network(std::shared_ptr<transport::Network> inner, bool counts)
      : inner_(std::move(inner)), counts_(counts) {
    relay = inner_->relay;
  }

  Result<std::unique_ptr<transport::Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                                    const transport::Purpose& purpose) override {
    auto endpoint = inner_->open(rank, ranks, meeting, purpose);
    if (!endpoint.ok()) return endpoint.status();
    std::unique_ptr<transport::Endpoint> wrong;
    if (counts_) {
      wrong = std::make_unique<RunningCount>(std::move(*endpoint), rank);
    } else {
      wrong = std::make_unique<LastChunk>(std::move(*endpoint));
    }
    return wrong;
  }

 private:
  std::shared_ptr<transport::Network> inner_;
  bool counts_;
};

}  // namespace

Result<std::shared_ptr<transport::Network>> with_scheme(std::shared_ptr<transport::Network> network,
                                                        std::string_view name) {
  const bool counts = name == "running_count";
  if (!counts && name != "last_chunk") {
    return Status(StatusCode::invalid_argument, "there is no such scheme");
  }
  return std::shared_ptr<transport::Network>(std::make_shared<Network>(std::move(network), counts));
}

}  // namespace sluice::support
