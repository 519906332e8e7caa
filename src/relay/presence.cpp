// SPDX-License-Identifier: MIT
#include "relay/presence.hpp"

#include <algorithm>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/mutants.hpp"
#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::relay {

using protocol::HostAccess;
using protocol::Kind;
using window::Sign;

namespace {

// Signs of life in the time after which a silent rank is given up; and at least so often, for peers
// whose calls have shorter deadlines than that.
constexpr int kBeats = 10;
constexpr std::int64_t kBeatNsMax = 100'000'000;
// But where there are many nodes, and ranks are patient, no more often than this for each of them: on few processors the signs
// of all ranks to all nodes would make ranks late.
constexpr std::int64_t kBeatNsEach = 2'000'000;
// In parts of the patience.
constexpr std::int64_t kDeathsAreToldAfter = 4;
// Patiences after which a path on which nothing moves is none.
constexpr std::int64_t kPathPatiences = 2;
// Patiences after which a node to which nothing goes any more has given this rank up, or is gone.
constexpr std::int64_t kCutPatiences = 4;
// Ranks begin one after the other.
constexpr std::int64_t kBeginNs = 5'000'000'000;

}  // namespace

Presence::Presence(const Site& site, Postings& postings, std::chrono::nanoseconds patience)
    : site_(site),
      postings_(postings),
      patience_ns_(patience.count()),
      beat_ns_(std::min(patience.count() / kBeats,
                        std::max(kBeatNsMax, kBeatNsEach * site.nodes.nodes()))),
      links_(index(site.nodes.nodes()), Link{Beats(patience.count(), base::now_ns() + kBeginNs)}),
      accused_(index(site.nodes.ranks())),
      heard_ns_(index(site.nodes.ranks()), base::now_ns() + kBeginNs),
      parted_ns_(index(site.nodes.ranks())),
      hung_up_ns_(index(site.nodes.ranks())),
      alive_(index(site.nodes.ranks())),
      deaths_(index(site.nodes.ranks())),
      paths_(index(site.nodes.ranks())),
      gone_(index(site.nodes.ranks())) {}

bool Presence::tell(std::int64_t now_ns) {
  bool any = tell_accusations();
  any |= tell_read(Kind::dispatch);
  any |= tell_read(Kind::combine);
  if (now_ns < next_beat_ns_) return any;
  next_beat_ns_ = now_ns + beat_ns_;
  // Who has left falls silent, and is given up when what it has sent has had the time to arrive. Its neighbours it serves still.
  if (!site_.ended(site_.rank)) tell_beat(now_ns);
  auto& alive = *site_.at<std::uint64_t>(site_.rank, site_.own().alive());
  // Pairs with the load in watch_neighbours() of the neighbours.
  HostAccess::store_release(alive, HostAccess::load_acquire(alive) + 1);
  return any;
}

void Presence::tell_beat(std::int64_t now_ns) {
  const std::uint64_t beats =
      site_.peers->control(site_.rank).beats.load(std::memory_order_relaxed);
  const Sign sign = beats == beats_ ? Sign::alive : Sign::beat;
  beats_ = beats;
  for (int node = 0; node < site_.nodes.nodes(); ++node) {
    if (node == site_.own_node() || link(node).cut()) continue;
    if (const auto number = link(node).beats.send(now_ns)) {
      postings_.sign(site_.rail_peer(node), sign, 0, *number);
    }
  }
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
    if (link(node).cut()) continue;  // Nothing goes there any more.
    postings_.sign(site_.rail_peer(node), Sign::accused, site_.nodes.place_of(peer));
    ++link(node).unheard;
    postings_.hold(site_.rail_peer(node), true);
    any = true;
  }
  return any;
}

void Presence::sign_all(Sign sign, int place) {
  for (int node = 0; node < site_.nodes.nodes(); ++node) {
    if (node != site_.own_node()) postings_.sign(site_.rail_peer(node), sign, place);
  }
}

void Presence::take(const window::RelaySlot& slot, std::uint32_t number, std::int64_t now_ns) {
  const int source = slot.source;
  heard(source, now_ns);
  const int node = site_.nodes.node_of(source);
  switch (slot.sign) {
    case Sign::told_dispatch: return count_up(source, site_.window.told(source, Kind::dispatch));
    case Sign::told_combine: return count_up(source, site_.window.told(source, Kind::combine));
    case Sign::beat: count_up(source, site_.window.beats(source)); return echo(source, number);
    case Sign::alive: return echo(source, number);
    case Sign::echo: return link(node).beats.take_echo(number, now_ns);
    case Sign::bye:
      for (const int reader : site_.neighbours()) {
        // Pairs with the load in closed() of the reader.
        HostAccess::store_release(
            *site_.at<std::uint64_t>(reader, site_.layout(reader).goodbye(source)), 1);
      }
      return;
    case Sign::heard:
      // Of a node that is cut some were accused without a word to it.
      if (link(node).cut() || --link(node).unheard > 0) return;
      postings_.hold(source, false);
      return settle_accused(node);
    case Sign::accused: {
      if (index(slot.place) >= site_.neighbours().size()) return;  // Of no rank.
      const int reader = site_.neighbours()[index(slot.place)];
      auto& word = *site_.at<std::uint64_t>(reader, site_.window.accusation(source));
      protocol::accuse<HostAccess>(word);
      site_.ring(reader);
      return;  // Progress says that it was heard.
    }
    case Sign::died:
    case Sign::ended:
      if (index(slot.place) >= site_.nodes.ranks_of(node).size()) return;
      for (const int reader : site_.neighbours()) {
        // Whose process has ended takes nothing more, so its leases are over, too.
        give_up(site_.nodes.ranks_of(node)[index(slot.place)], reader,
                slot.sign == Sign::ended ? kGivenUp | kSettled : kGivenUp);
      }
      next_watch_ns_ = 0;
      return;
    case Sign::absent:
      if (index(slot.place) >= site_.nodes.ranks_of(node).size()) return;
      return give_up(site_.nodes.ranks_of(node)[index(slot.place)], site_.rank, kGivenUp);
  }
}

// Those to whom there is no link, when all that were accused of the node know it: what they are still sent they do not
// take (shut_out()), so what it is read from may be overwritten.
void Presence::settle_accused(int node) {
  for (const int peer : site_.nodes.ranks_of(node)) {
    if (accused_[index(peer)] != 0 && is_apart(peer)) postings_.settle(peer);
  }
}

// The accusation was in this rank's window before the source learnt so, and overwrote what it had sent.
bool Presence::shut_out(int source) const noexcept {
  return is_apart(source) && is_accused_by(source);
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

void Presence::echo(int source, std::uint32_t number) {
  if (parted_ns_[index(source)] == 0) postings_.sign(source, Sign::echo, 0, number);
}

bool Presence::covered(int source, std::int64_t arrived_ns) const noexcept {
  if (base::mutant(base::Mutant::lease_ignored)) return true;
  return arrived_ns < links_[index(site_.nodes.node_of(source))].beats.lease_ns();
}

void Presence::watch(std::int64_t now_ns) {
  if (now_ns < next_watch_ns_) return;
  next_watch_ns_ = now_ns + std::min(beat_ns_, kBeatNsMax) / 2;
  const bool was_away = watched_ns_ != 0 && now_ns - watched_ns_ > patience_ns_ / 2;
  watched_ns_ = now_ns;
  watch_sources(now_ns);
  watch_links(now_ns);
  watch_neighbours(now_ns, was_away);
  watch_paths(now_ns, was_away);
  watch_peers(now_ns);
}

// Those that this rank serves: it decides for all of its node.
void Presence::watch_sources(std::int64_t now_ns) {
  for (const int source : site_.own().served()) {
    std::int64_t& parted_ns = parted_ns_[index(source)];
    if (parted_ns < 0) continue;  // Settled.
    if (parted_ns == 0 &&
        (gone_[index(source)] != 0 || reported_lost(source) || hung_up(source, now_ns))) {
      // Its leases run on for a while, so what it may still be sent stays as it is. From now on, not from when this step began:
      // it may have been given another one since then.
      parted_ns = base::now_ns();
      for (const int reader : site_.neighbours()) give_up(source, reader, kGivenUp);
    }
    const std::int64_t since_ns = parted_ns == 0 ? heard_ns_[index(source)] : parted_ns;
    if (now_ns - since_ns <= patience_ns_) continue;
    if (parted_ns == 0 && !closed(source)) {
      base::log_warn("rank {}: rank {} of another node is silent for {:.3f} s: given up",
                     site_.rank, source, static_cast<double>(now_ns - since_ns) * 1e-9);
    }
    parted_ns = -1;
    for (const int reader : site_.neighbours()) give_up(source, reader, kGivenUp | kSettled);
  }
}

// Whether the rank, of another node, has said goodbye.
bool Presence::closed(int rank) const noexcept {
  // Pairs with the store in take() of the one that serves it.
  return HostAccess::load_acquire(
             *site_.at<std::uint64_t>(site_.rank, site_.own().goodbye(rank))) != 0;
}

bool Presence::reported_lost(int source) const noexcept {
  const auto neighbours = site_.neighbours();
  return std::any_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
    // Pairs with the store in lost() of the neighbour.
    return HostAccess::load_acquire(
               *site_.at<std::uint64_t>(neighbour, site_.layout(neighbour).lost(source))) != 0;
  });
}

// Its process has ended, or only the connection: then signs of life go on, and for as long as there have been some for the
// patience nothing is made of it. What it has sent before has the time to arrive.
bool Presence::hung_up(int source, std::int64_t now_ns) {
  std::int64_t& since_ns = hung_up_ns_[index(source)];
  if (since_ns == 0 && site_.peers->hung_up(source)) since_ns = now_ns;
  const std::int64_t heard_ns = heard_ns_[index(source)];
  if (since_ns <= 0 || heard_ns > now_ns) return false;  // It has not begun.
  if (now_ns - std::max(since_ns, heard_ns) >= patience_ns_ / kDeathsAreToldAfter) {
    base::log(closed(source) ? base::LogLevel::info : base::LogLevel::warn,
              "rank {}: rank {} of another node has hung up, and is silent: given up", site_.rank,
              source);
    return true;
  }
  if (now_ns - since_ns >= patience_ns_) since_ns = -1;
  return false;
}

// Without its rail peer there this rank reaches nobody of a node, and nobody of it reaches this rank.
void Presence::watch_links(std::int64_t now_ns) {
  for (int node = 0; node < site_.nodes.nodes(); ++node) {
    if (node == site_.own_node() || link(node).cut()) continue;
    if (gone_[index(site_.rail_peer(node))] != 0) {
      cut(node, "its rail peer there is gone");
    } else if (link(node).beats.overdue(now_ns)) {
      cut(node,
          "its rail peer there does not answer, or not all that goes there, or comes from there, "
          "arrives");
    }
  }
}

// A neighbour that is frozen: its relay stands still, too. Of one that has ended other nodes learn at
// once. Who has not looked for long, as if the machine stood still, does not know who was silent, and
// begins anew.
void Presence::watch_neighbours(std::int64_t now_ns, bool was_away) {
  for (const int neighbour : site_.neighbours()) {
    if (neighbour == site_.rank || gone_[index(neighbour)] != 0) continue;
    tell_death(neighbour, now_ns);
    const auto& layout = site_.layout(neighbour);
    // Pairs with the stores in tell() and of the neighbour.
    const std::uint64_t alive =
        HostAccess::load_acquire(*site_.at<std::uint64_t>(neighbour, layout.alive()));
    // A relay that has failed is not closed: its rank falls silent for all. One that is closed, or whose rank has left, still serves.
    std::int64_t& heard_ns = heard_ns_[index(neighbour)];
    if (alive != alive_[index(neighbour)] || site_.relay_done(neighbour) ||
        site_.peers->has_ended(neighbour)) {
      alive_[index(neighbour)] = alive;
      heard_ns = now_ns;
    } else if (was_away) {
      heard_ns = std::max(heard_ns, now_ns);
    } else if (now_ns - heard_ns > patience_ns_) {
      base::log_warn("rank {}: rank {} of this node is silent for {:.3f} s: given up", site_.rank,
                     neighbour, static_cast<double>(now_ns - heard_ns) * 1e-9);
      give_up(neighbour, site_.rank, kGivenUp);
    }
  }
}

// After a while: what it has sent before may still be on its way, and signs overtake it.
void Presence::tell_death(int neighbour, std::int64_t now_ns) {
  Death& death = deaths_[index(neighbour)];
  if (death.told == Sign::ended || !site_.peers->is_dead(neighbour)) return;
  if (death.since_ns == 0) death.since_ns = now_ns;
  if (now_ns - death.since_ns < patience_ns_ / kDeathsAreToldAfter) return;
  // A process that has destroyed its world without leaving it may live, and serve others for a while.
  const Sign sign = site_.peers->has_ended(neighbour) ? Sign::ended : Sign::died;
  if (death.told == sign) return;
  death.told = sign;
  sign_all(sign, site_.nodes.place_of(neighbour));
}

// Beats take other ways. That a rank lives to which nothing goes any more, or which takes nothing of it, is no help: it is
// told that it is given up, and does not wait for this one. (The first chunk may have to wait for the connection.)
void Presence::watch_paths(std::int64_t now_ns, bool was_away) {
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || !is_apart(peer) || gone(peer)) continue;
    if (postings_.settled(peer)) continue;
    Path& path = paths_[index(peer)];
    const std::uint64_t steps = postings_.steps(peer);
    const bool waits = postings_.waits(peer);
    if (waits && path.begun_ns == 0) path.begun_ns = now_ns;
    if (!waits || path.steps != steps || was_away) {
      path.steps = steps;
      path.since_ns = now_ns;
    } else if (now_ns - std::max(path.since_ns, path.begun_ns + kBeginNs) >
               kPathPatiences * patience_ns_) {
      base::log(closing_ || closed(peer) ? base::LogLevel::info : base::LogLevel::warn,
                "rank {}: nothing has gone to rank {} of another node for {:.3f} s: given up",
                site_.rank, peer, static_cast<double>(now_ns - path.since_ns) * 1e-9);
      give_up_alone(peer);
    }
  }
}

// In the eyes of this rank, and it learns so.
void Presence::give_up_alone(int peer) {
  // Pairs with the load in tell_accusations().
  protocol::accuse<HostAccess>(*site_.at<std::uint64_t>(site_.rank, site_.own().accusation(peer)));
  give_up(peer, site_.rank, kGivenUp);
}

void Presence::watch_peers(std::int64_t now_ns) {
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || postings_.settled(peer)) continue;
    // Pairs with add_bits in give_up() of this rank and its neighbours.
    const std::uint64_t how =
        HostAccess::load_acquire(*site_.at<std::uint64_t>(site_.rank, site_.window.gone(peer)));
    if (how != 0) {
      gone_[index(peer)] = 1;
      postings_.close(peer);
    }
    if ((how & kSettled) != 0) postings_.settle(peer);
    // The one that decides may hear it well.
    const std::int64_t cut_ns = link(site_.nodes.node_of(peer)).cut_ns;
    if (cut_ns != 0 && is_apart(peer) && now_ns - cut_ns > kCutPatiences * patience_ns_) {
      postings_.settle(peer);
    }
    // If the one that decides is gone, too, it gives no leases: what it gave is over by then.
    const int server = site_.nodes.rail_peer(peer, site_.own_node());
    if (server == site_.rank) continue;
    const bool unheard = passes_nothing_on(server);
    if (!unheard && (how == 0 || !site_.ended(server))) continue;
    std::int64_t& parted_ns = parted_ns_[index(peer)];
    if (parted_ns == 0) parted_ns = base::now_ns();
    // Nor does anybody else say what becomes of the peer.
    if (how == 0 && now_ns - parted_ns > patience_ns_ / kDeathsAreToldAfter) {
      give_up(peer, site_.rank, kGivenUp);
    }
    if (now_ns - parted_ns > 2 * patience_ns_) postings_.settle(peer);
  }
}

// Of what comes from other nodes, nor their goodbyes. (Who has only destroyed its world, or left it, may go on to.)
bool Presence::passes_nothing_on(int neighbour) const noexcept {
  return neighbour != site_.rank &&
         (site_.peers->has_ended(neighbour) || site_.relay_ended(neighbour) || gone(neighbour));
}

// In the eyes of a rank of this node.
void Presence::give_up(int rank, int at, std::uint64_t how) {
  if (at == site_.rank) gone_[index(rank)] = 1;
  site_.give_up(rank, at, how);
}

void Presence::cut(int node, const char* why) {
  base::log(ends_well(node) ? base::LogLevel::info : base::LogLevel::warn,
            "rank {}: nothing goes to or comes from node {}: {}", site_.rank, node, why);
  link(node).cut_ns = base::now_ns();
  for (const int peer : site_.nodes.ranks_of(node)) {
    give_up(peer, site_.rank, kGivenUp);
    postings_.close(peer);
  }
}

// Whether no more was to be expected. Who has closed, and whose peers have, may end with what it was
// still told unread: then the network breaks off, and with it perhaps the last that it has said, its goodbye.
bool Presence::ends_well(int node) const noexcept {
  return closing_ || site_.ended(site_.rank) || closed(site_.rail_peer(node));
}

void Presence::lost(int peer) {
  base::log(closing_ || closed(peer) ? base::LogLevel::info : base::LogLevel::warn,
            "rank {}: the network has lost rank {}", site_.rank, peer);
  postings_.close(peer);
  next_watch_ns_ = 0;
  // With one to which there is no link others may do well.
  if (is_apart(peer)) return give_up_alone(peer);
  // Pairs with the load in reported_lost() of the rank that serves it.
  HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, site_.own().lost(peer)), 1);
  give_up(peer, site_.rank, kGivenUp);
}

void Presence::give_up_all(const char* why) {
  for (const int source : site_.own().served()) {
    for (const int reader : site_.neighbours()) give_up(source, reader, kGivenUp);
  }
  for (int node = 0; node < site_.nodes.nodes(); ++node) {
    if (node != site_.own_node() && !link(node).cut()) cut(node, why);
  }
  next_watch_ns_ = 0;
}

void Presence::say_goodbye() {
  closing_ = true;
  sign_all(Sign::bye);
}

bool Presence::counts(int rank) const noexcept {
  // Nor if it has given this rank up.
  return gone_[index(rank)] == 0 && accused_[index(rank)] == 0 && !is_accused_by(rank);
}

bool Presence::is_accused_by(int rank) const noexcept {
  // Pairs with protocol::accuse in take() of the one that serves it.
  return HostAccess::load_acquire(
             *site_.at<std::uint64_t>(site_.rank, site_.window.accusation(rank))) != 0;
}

bool Presence::all_closed() const noexcept {
  for (int peer = 0; peer < site_.nodes.ranks(); ++peer) {
    if (site_.nodes.together(peer, site_.rank) || closed(peer)) continue;
    // Who takes its goodbye here is gone: it does not come any more, nor anything else.
    const bool unheard = passes_nothing_on(site_.nodes.rail_peer(peer, site_.own_node()));
    if (counts(peer) && !unheard) return false;
  }
  return true;
}

}  // namespace sluice::relay
