// SPDX-License-Identifier: MIT
#include "engine/cpu/handshake.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/mutants.hpp"
#include "base/standstill.hpp"
#include "base/test_point.hpp"
#include "engine/cpu/waiter.hpp"
#include "protocol/epochs.hpp"
#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::engine::cpu {
namespace {

using base::Mutant;
using base::mutant;
using base::test_point;
using base::TestPoint;
using protocol::HostAccess;
using protocol::Kind;

const char* name_of(Kind kind) noexcept {
  return kind == Kind::dispatch ? "dispatch" : "combine";
}

constexpr std::int64_t kFlushSleepNs = 20'000'000;

// What an operation overwrites is this many operations old.
int reuse_depth(const Context& context) noexcept {
  return context.throughput() ? context.config.window.dispatch_stages : context.config.window.banks;
}

// A rank of another node through which this one sends there takes that node with it: nobody there would
// tell any more when what this rank sends has come.
void accuse(Context& context, int peer) noexcept {
  protocol::accuse<HostAccess>(context.lanes.accusation_out(peer));
  if (context.together(peer)) return;
  const int node = context.nodes().node_of(peer);
  if (context.nodes().rail_peer(context.rank(), node) != peer) return;
  for (const int rank : context.nodes().ranks_of(node)) {
    context.suspects.suspect(rank);
    protocol::accuse<HostAccess>(context.lanes.accusation_out(rank));
  }
}

template <typename Ready>
RankSet await(Context& context, const Exchange& exchange, const char* what, const RankSet& awaited,
              Ready&& ready) {
  const trace::Span span(context.timeline, trace::Phase::wait, name_of(exchange.kind),
                         exchange.epoch);
  const std::int64_t start_ns = base::now_ns();
  Waiter waiter(*context.group, context.lanes, context.suspects, exchange.timeout,
                {name_of(exchange.kind), what, exchange.epoch},
                context.statistics.wait_ns_per_source, context.spins);
  const RankSet missing =
      protocol::await(waiter, context.suspects, awaited, context.ranks(), ready);
  for (int peer = 0; peer < context.ranks(); ++peer) {
    // Before anything that the peer may still be pulling is reused; see look_back().
    if (missing.contains(peer)) accuse(context, peer);
  }
  if (!missing.empty() && context.relay != nullptr) context.relay->wake();
  *exchange.wait_ns += base::now_ns() - start_ns;
  return missing;
}

void ring(Context& context, int peer) noexcept {
  if (context.together(peer)) context.group->control(peer).doorbell.ring();
}

void tell_peers(Context& context, Kind kind) noexcept {
  if (mutant(Mutant::told_not_stored)) return;
  const RankSet peers = active_peers(context);
  for (int peer = 0; peer < context.ranks(); ++peer) {
    // Pairs with the load in has_told() of the peer.
    if (peers.contains(peer)) {
      protocol::tell<HostAccess>(context.lanes.told_out(peer, kind), context.last_read(kind));
    }
  }
  if (context.relay != nullptr) context.relay->wake();
}

void ring_peers(Context& context) noexcept {
  const RankSet peers = active_peers(context);
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (peers.contains(peer)) ring(context, peer);
  }
}

bool has_told(const Context& context, Kind kind, int peer, std::uint64_t epoch) noexcept {
  return protocol::told<HostAccess>(context.lanes.told_in(peer, kind)) >= epoch;
}

// Who has read what was sent has got it: but of what went to other nodes some may have been for
// ranks there that were given up, and may still be read from here.
bool all_told(const Context& context, Kind kind, std::uint64_t epoch) noexcept {
  const RankSet peers = active_peers(context);
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (peers.contains(peer) && !has_told(context, kind, peer, epoch)) return false;
  }
  return context.relay == nullptr || context.relay->flushed(kind, epoch);
}

// Also what went to ranks of other nodes that are all given up by now may still be read from here: they
// live, and find out by what they read whether they were given up. The relay sees to it that this ends.
void await_flushed(Context& context, const Exchange& exchange, std::uint64_t epoch) {
  if (context.relay == nullptr || context.relay->flushed(exchange.kind, epoch)) return;
  const std::int64_t start_ns = base::now_ns();
  memory::Sleeper sleeper(context.group->control(context.rank()).doorbell);
  base::Standstill standstill(exchange.timeout);
  base::Deadline deadline = base::Deadline::after(exchange.timeout);
  base::Deadline settled = base::Deadline::after(4 * context.relay->patience());
  for (;;) {
    sleeper.prepare();
    const std::int64_t uncounted_ns = standstill.look(base::now_ns());
    deadline.put_off(uncounted_ns);
    settled.put_off(uncounted_ns);
    if (context.relay->flushed(exchange.kind, epoch)) break;
    if (deadline.expired() && settled.expired()) {
      base::log_error("rank {}: what {} {} has sent to other nodes is still being read",
                      context.rank(), name_of(exchange.kind), epoch);
      break;
    }
    beat(*context.group);
    sleeper.sleep(kFlushSleepNs);
  }
  *exchange.wait_ns += base::now_ns() - start_ns;
}

// Waits until every peer has told that it has read `epoch`.
void await_told(Context& context, const Exchange& exchange, std::uint64_t epoch, const char* what) {
  await(context, exchange, what, active_peers(context),
        [&](int peer) { return has_told(context, exchange.kind, peer, epoch); });
  await_flushed(context, exchange, epoch);
}

// Waits until nobody reads any more what is the caller's: neighbours have told so, and of what goes to
// other nodes (rows of x; results are staged for them) all is on its way.
void await_done(Context& context, const Exchange& exchange) {
  const RankSet peers = active_peers(context);
  RankSet near;
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (peers.contains(peer) && context.together(peer)) near.insert(peer);
  }
  await(context, exchange, "done", near,
        [&](int peer) { return has_told(context, exchange.kind, peer, exchange.epoch); });
  if (exchange.kind == Kind::dispatch) await_flushed(context, exchange, exchange.epoch);
}

}  // namespace

RankSet active_peers(const Context& context) noexcept {
  RankSet active;
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (peer != context.rank() && !context.suspects.contains(peer)) active.insert(peer);
  }
  return active;
}

void open_send(Context& context, const Exchange& exchange) {
  test_point(TestPoint::before_tell, context.rank());
  if (mutant(Mutant::told_early)) context.last_read(exchange.kind) = exchange.epoch;
  tell_peers(context, exchange.kind);
  test_point(TestPoint::before_guard, context.rank());
  const std::uint64_t guard = protocol::guard_epoch(exchange.epoch, reuse_depth(context));
  if (!all_told(context, exchange.kind, guard)) {
    // Peers that sleep in their guard have not been woken for what was told above: who goes on at
    // once wakes them with its cells, who waits itself must do it here.
    ring_peers(context);
    await_told(context, exchange, guard, "guard");
  }
  test_point(TestPoint::before_payload, context.rank());
}

void publish_cell(Context& context, const Exchange& exchange, int peer, protocol::CellKind cell,
                  const protocol::CellContent& content) {
  if (mutant(Mutant::ring_before_publish)) ring(context, peer);
  test_point(TestPoint::before_publish, context.rank(), peer);
  const int bank = protocol::bank_of(exchange.epoch, context.config.window.banks);
  // Pairs with the load in await_cells() of the peer.
  protocol::publish<HostAccess>(context.lanes.cell_out(peer, cell, bank), content, exchange.epoch);
  if (!mutant(Mutant::ring_before_publish)) ring(context, peer);
  test_point(TestPoint::after_publish, context.rank(), peer);
}

RankSet await_cells(Context& context, const Exchange& exchange, protocol::CellKind cell) {
  test_point(TestPoint::before_await, context.rank());
  const int bank = protocol::bank_of(exchange.epoch, context.config.window.banks);
  RankSet all = active_peers(context);
  all.insert(context.rank());
  RankSet missing = await(context, exchange, "cell", all, [&](int peer) {
    if (protocol::arrived<HostAccess>(context.lanes.cell_in(peer, cell, bank), exchange.epoch)) {
      return true;
    }
    if (cell != protocol::CellKind::weights) return false;
    // It made another call, if the answer does not belong to weights: from another node it may arrive
    // before them.
    const protocol::Cell& answer = context.lanes.cell_in(peer, protocol::CellKind::combine, bank);
    return protocol::arrived<HostAccess>(answer, exchange.epoch) &&
           (answer.content.flags & protocol::cell_flags::kWithWeights) == 0;
  });
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (!all.contains(peer)) missing.insert(peer);
  }
  test_point(TestPoint::before_read, context.rank());
  return missing;
}

namespace {

// Whether the source, which has made this call, sends rows, or weights, to this node.
bool sends_more(const Context& context, const Exchange& exchange, int source) noexcept {
  const int bank = protocol::bank_of(exchange.epoch, context.config.window.banks);
  const bool dispatch = exchange.kind == Kind::dispatch;
  const protocol::Cell& cell = context.lanes.cell_in(
      source, dispatch ? protocol::CellKind::dispatch : protocol::CellKind::combine, bank);
  if (!protocol::arrived<HostAccess>(cell, exchange.epoch)) return false;
  const std::uint32_t flags = cell.content.flags;
  if (!dispatch) return (flags & protocol::cell_flags::kWithWeights) != 0;
  return (flags & (protocol::cell_flags::kRefused | protocol::cell_flags::kNoRows)) == 0;
}

// What this rank passes on has come, all of it: its slots are used again once every rank here has told
// that it has read, and there may be rows that none of them wanted.
void await_served(Context& context, const Exchange& exchange) {
  if (context.relay == nullptr) return;
  const window::RelayLayout& own = context.relay->site().own();
  const int bank = protocol::bank_of(exchange.epoch, context.config.window.banks);
  RankSet weights;
  for (const int source : own.served()) {
    if (context.suspects.contains(source) || !sends_more(context, exchange, source)) continue;
    if (exchange.kind == Kind::combine) {
      weights.insert(source);
    } else {
      await_rows(context, exchange, source, own.all_rows());
    }
  }
  await(context, exchange, "weights", weights, [&](int source) {
    return protocol::arrived<HostAccess>(
        context.lanes.cell_in(source, protocol::CellKind::weights, bank), exchange.epoch);
  });
}

}  // namespace

std::uint32_t await_rows(Context& context, const Exchange& exchange, int source,
                         std::uint32_t rows) {
  const int forwarder = context.forwarder(source);
  const window::RelayLayout& there = context.relay->site().layout(forwarder);
  const int stage = there.dispatch_stage(exchange.epoch);
  const auto& word = *reinterpret_cast<const std::uint64_t*>(context.lanes.window(forwarder) +
                                                             there.landed(source, stage));
  // Pairs with the store in Inbox::advance of the forwarder.
  const auto landed = [&]() -> std::uint32_t {
    const std::uint64_t seen = HostAccess::load_acquire(word);
    return seen >> 32 == (exchange.epoch & 0xFFFFFFFFU) ? static_cast<std::uint32_t>(seen) : 0;
  };
  if (landed() >= rows) return landed();
  RankSet only;
  only.insert(source);
  const RankSet missing =
      await(context, exchange, "rows", only, [&](int /*peer*/) { return landed() >= rows; });
  return missing.empty() ? landed() : 0;
}

RankSet look_back(Context& context, const RankSet& sources) {
  RankSet lost;
  for (int source = 0; source < context.ranks(); ++source) {
    if (source == context.rank() || !sources.contains(source)) continue;
    // Pairs with protocol::accuse in await() of the source.
    if (!protocol::accused<HostAccess>(context.lanes.accusation_in(source))) continue;
    lost.insert(source);
    context.suspects.suspect(source);
    accuse(context, source);
    base::log_warn("rank {}: gave up rank {}: it has given this rank up while its rows were read",
                   context.rank(), source);
  }
  return lost;
}

void close_receive(Context& context, const Exchange& exchange, bool zero_copy) {
  await_served(context, exchange);
  test_point(TestPoint::before_done, context.rank());
  context.last_read(exchange.kind) = exchange.epoch;
  beat(*context.group);
  if (context.reads_in_place()) {
    tell_peers(context, exchange.kind);
    ring_peers(context);
    if (zero_copy && !mutant(Mutant::done_wait_skipped)) await_done(context, exchange);
  }
  context.suspects.operation_ended();
}

Verdict judge_cells(const Context& context, protocol::CellKind cell, int bank,
                    const protocol::CellContent& own, const RankSet& missing,
                    const std::int32_t* expected, std::int32_t records_max) {
  Verdict verdict;
  for (int peer = 0; peer < context.ranks(); ++peer) {
    if (missing.contains(peer) && !mutant(Mutant::missing_accepted)) continue;
    const protocol::CellContent& seen = context.lanes.cell_in(peer, cell, bank).content;
    if ((seen.flags & protocol::cell_flags::kRefused) != 0 && !mutant(Mutant::refused_taken)) {
      verdict.refused.insert(peer);
      continue;
    }
    const bool nothing = (seen.flags & protocol::cell_flags::kNothing) != 0;
    bool fits = agree(own, seen) || mutant(Mutant::mismatch_ignored);
    if (fits && !nothing && !mutant(Mutant::records_not_checked)) {
      fits = expected != nullptr ? seen.records == expected[peer]
                                 : seen.records >= 0 && seen.records <= records_max;
    }
    if (!fits) {
      verdict.mismatched.insert(peer);
      if (verdict.first_mismatch < 0) verdict.first_mismatch = peer;
    } else if (!nothing) {
      verdict.accepted.insert(peer);
    }
  }
  return verdict;
}

Status mismatch_status(const protocol::CellContent& own, const protocol::CellContent& seen,
                       int peer, const char* operation, std::uint64_t epoch) {
  const auto text = [](const protocol::CellContent& cell) {
    return fmt::format(
        "mode {} layout {} codec {}/{}/{} capacity {} alignment {} flags {:#x} handle of dispatch "
        "{} records {}",
        cell.mode, cell.layout, cell.codec_kind, cell.codec_form, cell.codec_group, cell.capacity,
        cell.alignment, cell.flags & protocol::cell_flags::kAgreed, cell.dispatch, cell.records);
  };
  return {StatusCode::mismatch,
          fmt::format("{} {}: rank {} made another call; expected {}; seen {}", operation, epoch,
                      peer, text(own), text(seen))};
}

}  // namespace sluice::engine::cpu
