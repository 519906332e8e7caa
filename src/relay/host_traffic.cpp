// SPDX-License-Identifier: MIT
#include <algorithm>

#include "relay/inbox.hpp"
#include "relay/node_sums.hpp"
#include "relay/outbox.hpp"
#include "relay/traffic.hpp"

namespace sluice::relay {
namespace {

class HostTraffic final : public Traffic {
 public:
  HostTraffic(const Site& site, Postings& postings)
      : outbox_(site, postings), sums_(site, postings), inbox_(site) {}

  bool step() override {
    bool any = outbox_.take();
    any |= sums_.step();
    return any;
  }
  void chunk(std::uint32_t immediate) override { inbox_.chunk(immediate); }
  std::uint64_t posted(protocol::Kind kind) const noexcept override {
    return kind == protocol::Kind::dispatch
               ? outbox_.posted(protocol::CellKind::dispatch)
               : std::min(outbox_.posted(protocol::CellKind::combine), sums_.posted());
  }

 private:
  Outbox outbox_;
  NodeSums sums_;
  Inbox inbox_;
};

}  // namespace

std::unique_ptr<Traffic> host_traffic(const Site& site, Postings& postings) {
  return std::make_unique<HostTraffic>(site, postings);
}

}  // namespace sluice::relay
