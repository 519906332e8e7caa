// SPDX-License-Identifier: MIT
#include "relay/presence.hpp"

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::relay {

using protocol::HostAccess;
using protocol::Kind;
using window::Sign;

namespace {

// Signs of life in the time after which a silent rank is given up.
constexpr int kBeats = 10;

}  // namespace

Presence::Presence(const Site& site, Postings& postings, std::chrono::nanoseconds patience)
    : site_(site),
      postings_(postings),
      patience_ns_(patience.count()),
      accused_(index(site.nodes.ranks())),
      unheard_(index(site.nodes.nodes())),
      heard_ns_(index(site.nodes.ranks()), base::now_ns()),
      alive_(index(site.nodes.ranks())),
      gone_(index(site.nodes.ranks())),
      closed_(index(site.nodes.ranks())) {}

bool Presence::tell(std::int64_t now_ns) {
  bool any = tell_accusations();
  any |= tell_read(Kind::dispatch);
  any |= tell_read(Kind::combine);
  // Who has left falls silent, and is given up when what it has sent has had the time to arrive.
  if (now_ns >= next_beat_ns_ && !site_.ended(site_.rank)) {
    next_beat_ns_ = now_ns + patience_ns_ / kBeats;
    const std::uint64_t beats =
        site_.group->control(site_.rank).beats.load(std::memory_order_relaxed);
    sign_all(beats == beats_ ? Sign::alive : Sign::beat);
    beats_ = beats;
    auto& alive = *site_.at<std::uint64_t>(site_.rank, site_.own().alive());
    // Pairs with the load in watch_neighbours() of the neighbours.
    HostAccess::store_release(alive, HostAccess::load_acquire(alive) + 1);
  }
  return any;
}

bool Presence::tell_read(Kind kind) {
  // Pairs with protocol::tell in tell_peers(): what was read comes before.
  const std::uint64_t read =
      protocol::told<HostAccess>(*site_.at<std::uint64_t>(site_.rank, site_.own().told(kind)));
  std::uint64_t& told = told_[static_cast<std::size_t>(kind)];
  const bool any = told < read;
  for (; told < read; ++told) {
    sign_all(kind == Kind::dispatch ? Sign::told_dispatch : Sign::told_combine);
  }
  return any;
}

// Until an accusation is known to have been passed on, nothing more goes to the accused rank's node:
// rows that overtake it could be taken for those that the accused rank is still reading.
bool Presence::tell_accusations() {
  bool any = false;
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || accused_[index(peer)] != 0) continue;
    // Pairs with protocol::accuse in await().
    if (HostAccess::load_acquire(
            *site_.at<std::uint64_t>(site_.rank, site_.own().accusation(peer))) == 0) {
      continue;
    }
    accused_[index(peer)] = 1;
    const int node = site_.nodes.node_of(peer);
    postings_.sign(site_.rail_peer(node), Sign::accused, site_.nodes.place_of(peer));
    ++unheard_[index(node)];
    postings_.hold(site_.rail_peer(node), true);
    any = true;
  }
  return any;
}

void Presence::sign_all(Sign sign) {
  for (int node = 0; node < site_.nodes.nodes(); ++node) {
    if (node != site_.own_node()) postings_.sign(site_.rail_peer(node), sign);
  }
}

void Presence::take(int source, int sign, std::int64_t now_ns) {
  heard(source, now_ns);
  if (sign >= static_cast<int>(Sign::accused)) {
    const int place = sign - static_cast<int>(Sign::accused);
    const int reader = site_.neighbours()[index(place)];
    protocol::accuse<HostAccess>(*site_.at<std::uint64_t>(reader, site_.window.accusation(source)));
    site_.ring(reader);
    postings_.sign(source, Sign::heard);
    return;
  }
  switch (static_cast<Sign>(sign)) {
    case Sign::told_dispatch: return count_up(source, site_.window.told(source, Kind::dispatch));
    case Sign::told_combine: return count_up(source, site_.window.told(source, Kind::combine));
    case Sign::beat: return count_up(source, site_.window.beats(source));
    case Sign::bye: closed_[index(source)] = 1; return;
    case Sign::heard: {
      const int node = site_.nodes.node_of(source);
      if (--unheard_[index(node)] == 0) postings_.hold(source, false);
      return;
    }
    case Sign::alive:
    case Sign::accused: return;
  }
}

// In the source's lane at every rank of this node. This rank alone writes these words.
void Presence::count_up(int source, std::size_t offset) {
  if (gone_[index(source)] != 0) return;
  for (const int reader : site_.neighbours()) {
    auto& word = *site_.at<std::uint64_t>(reader, offset);
    // Pairs with the loads in has_told() and Waiter of the reader.
    HostAccess::store_release(word, HostAccess::load_acquire(word) + 1);
    site_.ring(reader);
  }
}

void Presence::watch(std::int64_t now_ns) {
  if (now_ns < next_watch_ns_) return;
  next_watch_ns_ = now_ns + patience_ns_ / (2 * kBeats);
  for (const int source : site_.own().served()) {
    if (gone_[index(source)] != 0 || now_ns - heard_ns_[index(source)] <= patience_ns_) continue;
    if (closed_[index(source)] == 0) {
      base::log_warn("rank {}: rank {} of another node is silent for {:.3f} s: given up",
                     site_.rank, source,
                     static_cast<double>(now_ns - heard_ns_[index(source)]) * 1e-9);
    }
    mark_gone(source);
  }
  watch_neighbours(now_ns);
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || postings_.dropped(peer)) continue;
    // Pairs with the store in mark_gone() of the rank that serves it.
    if (HostAccess::load_acquire(*site_.at<std::uint64_t>(site_.rank, site_.window.gone(peer))) ==
        0) {
      continue;
    }
    // What was put to it may never leave this rank's memory: nobody waits for that any more.
    gone_[index(peer)] = 1;
    postings_.drop(peer);
  }
}

// A neighbour that is frozen: its relay stands still, too.
void Presence::watch_neighbours(std::int64_t now_ns) {
  for (const int neighbour : site_.neighbours()) {
    if (neighbour == site_.rank || gone_[index(neighbour)] != 0) continue;
    const auto& layout = site_.layout(neighbour);
    // Pairs with the stores in tell() and of the neighbour.
    const std::uint64_t alive =
        HostAccess::load_acquire(*site_.at<std::uint64_t>(neighbour, layout.alive()));
    const bool closed =
        HostAccess::load_acquire(*site_.at<std::uint64_t>(neighbour, layout.closed())) != 0;
    if (alive != alive_[index(neighbour)] || closed || site_.ended(neighbour)) {
      alive_[index(neighbour)] = alive;
      heard(neighbour, now_ns);
    } else if (now_ns - heard_ns_[index(neighbour)] > patience_ns_) {
      base::log_warn("rank {}: rank {} of this node is silent for {:.3f} s: given up", site_.rank,
                     neighbour, static_cast<double>(now_ns - heard_ns_[index(neighbour)]) * 1e-9);
      gone_[index(neighbour)] = 1;
      // Pairs with the loads in Site::ended and Waiter::gone.
      HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, site_.window.gone(neighbour)),
                                1);
      site_.ring(site_.rank);
    }
  }
}

void Presence::mark_gone(int source) {
  gone_[index(source)] = 1;
  for (const int reader : site_.neighbours()) {
    // Pairs with the load in Waiter::gone of the reader.
    HostAccess::store_release(*site_.at<std::uint64_t>(reader, site_.window.gone(source)), 1);
    site_.ring(reader);
  }
}

void Presence::lost(int peer) {
  base::log_warn("rank {}: the network has lost rank {}", site_.rank, peer);
  postings_.drop(peer);
  gone_[index(peer)] = 1;
  // Pairs with the load in Waiter::gone of this rank.
  HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, site_.window.gone(peer)), 1);
  site_.ring(site_.rank);
}

void Presence::say_goodbye() {
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (!site_.nodes.together(peer, site_.rank)) postings_.sign(peer, Sign::bye);
  }
}

bool Presence::all_closed() const noexcept {
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank)) continue;
    if (closed_[index(peer)] == 0 && gone_[index(peer)] == 0) return false;
  }
  return true;
}

}  // namespace sluice::relay
