// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "relay/postings.hpp"
#include "relay/site.hpp"

namespace sluice::relay {

/// What the ranks of one engine send to other nodes and take from there, as their progress threads see
/// it. No call waits.
class Traffic {
 public:
  virtual ~Traffic() = default;

  /// Posts what the engine has published since, and does what else there is; whether anything was.
  virtual bool step() = 0;
  /// One chunk of a message, not a sign.
  virtual void chunk(std::uint32_t immediate) = 0;
  /// The last operation of the kind whose messages have all been posted.
  virtual std::uint64_t posted(protocol::Kind kind) const noexcept = 0;
  /// A source of another node has given `reader`, of this node, up, and will send what overwrites what that one may be reading
  /// once it has `heard`. Whether who reads there can see it by now; else this says `heard` later.
  virtual bool accused(int source, int reader) {
    static_cast<void>(source);
    static_cast<void>(reader);
    return true;
  }
  /// Whether nothing of it is still to be done for ranks of this node.
  virtual bool idle() const noexcept { return true; }
};

/// Makes it in the progress thread.
using MakeTraffic = std::function<std::unique_ptr<Traffic>(const Site& site, Postings& postings)>;

/// Of the CPU engine: its lanes, and the sums of nodes.
std::unique_ptr<Traffic> host_traffic(const Site& site, Postings& postings);

}  // namespace sluice::relay
