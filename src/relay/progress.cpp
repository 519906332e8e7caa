// SPDX-License-Identifier: MIT
#include "relay/progress.hpp"

#include <algorithm>
#include <array>

#include "base/deadline.hpp"
#include "base/test_point.hpp"
#include "protocol/host_access.hpp"
#include "transport/message.hpp"

namespace sluice::relay {

using protocol::HostAccess;

Progress::Progress(const Site& site, transport::Endpoint& endpoint,
                   std::chrono::nanoseconds patience, const MakeTraffic& make_traffic)
    : site_(site),
      endpoint_(endpoint),
      patience_ns_(patience.count()),
      postings_(endpoint, site),
      traffic_(make_traffic(site, postings_)),
      presence_(site, postings_, patience),
      told_(static_cast<std::size_t>(site.nodes.ranks())) {}

bool Progress::step() {
  const std::int64_t now_ns = base::now_ns();
  // Its neighbours may have given it up by now, and then give no leases in its name any more.
  if (stepped_ns_ != 0 && now_ns - stepped_ns_ > patience_ns_) {
    presence_.give_up_all("this rank stood still for too long");
  }
  stepped_ns_ = now_ns;
  base::test_point(base::TestPoint::progress, site_.rank);
  bool any = poll();
  // Accusations before what was published after them.
  any |= presence_.tell(now_ns);
  any |= traffic_->step();
  any |= postings_.post();
  tell_flushed(protocol::Kind::dispatch);
  tell_flushed(protocol::Kind::combine);
  presence_.watch(now_ns);
  return any;
}

bool Progress::poll() {
  std::array<transport::Event, 64> events;
  bool any = false;
  const std::size_t count = endpoint_.poll(events);
  // Taken after it: whatever is here now had arrived by then.
  const std::int64_t now_ns = base::now_ns();
  for (std::size_t i = 0; i < count; ++i) {
    const transport::Event& event = events[i];
    switch (event.kind) {
      case transport::Event::Kind::sent: any |= postings_.sent(event); break;
      case transport::Event::Kind::lost:
        any = true;
        presence_.lost(event.peer);
        break;
      case transport::Event::Kind::arrived: {
        const transport::Signal signal = transport::Signal::decode(event.immediate);
        if (signal.slot >= site_.own().slots()) break;
        const window::RelaySlot slot = site_.own().slot(signal.slot);
        endpoint_.took(slot.source, 1);
        if (slot.what == window::RelaySlot::What::sign) {
          any |= !window::is_sign_of_life(slot.sign);
          presence_.take(slot, signal.number(), now_ns);
          if (slot.sign == window::Sign::accused) take_accusation(slot);
        } else {
          any = true;
          presence_.heard(slot.source, now_ns);
          doubtful_.push_back({slot.source, event.immediate, now_ns});
        }
        break;
      }
    }
  }
  if (!doubtful_.empty()) take_chunks();
  return any;
}

void Progress::take_accusation(const window::RelaySlot& slot) {
  const auto neighbours = site_.neighbours();
  const auto place = static_cast<std::size_t>(slot.place);
  if (place >= neighbours.size()) return;  // Of no rank.
  if (!traffic_->accused(slot.source, neighbours[place])) return;
  postings_.sign(slot.source, window::Sign::heard);
}

void Progress::take_chunks() {
  std::size_t left = 0;
  // Pairs with the load in Relay::read.
  HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, site_.own().last_arrival()),
                            static_cast<std::uint64_t>(doubtful_.back().arrived_ns));
  for (const Doubtful& chunk : doubtful_) {
    if (presence_.gone(chunk.source) || presence_.shut_out(chunk.source)) continue;
    if (presence_.covered(chunk.source, chunk.arrived_ns)) {
      traffic_->chunk(chunk.immediate);
    } else {
      doubtful_[left++] = chunk;
    }
  }
  doubtful_.resize(left);
}

void Progress::tell_flushed(protocol::Kind kind) {
  const std::uint64_t posted = traffic_->posted(kind);
  auto& word = *site_.at<std::uint64_t>(site_.rank, site_.own().flushed(kind));
  const std::uint64_t before = HostAccess::load_acquire(word);
  std::uint64_t flushed = before;
  while (flushed < posted && postings_.settled({kind, site_.bank(flushed + 1)})) ++flushed;
  if (flushed == before) return;
  // Pairs with the load in Relay::flushed.
  HostAccess::store_release(word, flushed);
  site_.ring(site_.rank);
}

// Up to its goodbye: what follows that, signs of life and their echoes, may find nobody there any more, and never be out.
bool Progress::has_told(int peer) {
  Told& told = told_[static_cast<std::size_t>(peer)];
  const std::uint64_t messages = postings_.messages(peer);
  if (!told.mark || told.messages != messages) {
    told = {postings_.posted(peer) ? endpoint_.mark(peer) : std::nullopt, messages};
  }
  return told.mark && endpoint_.is_out(peer, *told.mark);
}

bool Progress::finished() {
  bool told = true;
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || !presence_.counts(peer)) continue;
    told &= has_told(peer);
  }
  if (!told || !postings_.idle() || !traffic_->idle() || !presence_.all_closed()) return false;
  const auto neighbours = site_.neighbours();
  const bool alone = std::all_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
    return site_.ended(neighbour) || site_.relay_state(neighbour) != 0;
  });
  if (!alone) return false;
  // What was signed since then, that an accusation was heard above all, goes along if it can.
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (!site_.nodes.together(peer, site_.rank)) static_cast<void>(endpoint_.mark(peer));
  }
  return true;
}

}  // namespace sluice::relay
