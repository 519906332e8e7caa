// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/cpu/context.hpp"
#include "protocol/cell.hpp"
#include "sluice/report.hpp"

/// The steps of the protocol (docs/protocol.md) that every half is made of.
namespace sluice::engine::cpu {

/// One operation's side of the handshake.
struct Exchange {
  protocol::Kind kind;
  std::uint64_t epoch;
  std::chrono::nanoseconds timeout;
  std::int64_t* wait_ns;  // Time spent waiting is added here.
};

/// Peers (not this rank) that are not suspected.
RankSet active_peers(const Context& context) noexcept;

/// Head of a send half: tells every peer what this rank has read, then waits until all have read
/// what this operation overwrites.
void open_send(Context& context, const Exchange& exchange);

/// Publishes a cell at `peer` (or here) and wakes it.
void publish_cell(Context& context, const Exchange& exchange, int peer, protocol::CellKind cell,
                  const protocol::CellContent& content);

/// Waits for the cells of all ranks, this one included. Returns those that are missing.
/// A weights cell may be replaced by the operation's combine cell: then the peer made another call.
RankSet await_cells(Context& context, const Exchange& exchange, protocol::CellKind cell);

/// Waits until the rows of the first `rows` tokens of `source`, of another node, are in its forwarder's
/// window. Returns of how many tokens they are there; 0: it was given up.
std::uint32_t await_rows(Context& context, const Exchange& exchange, int source,
                         std::uint32_t rows);

/// After rows of `sources` have been pulled: those among them that had given this rank up by then,
/// so that what was pulled may be anything. They become suspects; the caller drops their rows.
RankSet look_back(Context& context, const RankSet& sources);

/// End of a receive half: everything of this epoch has been read. Where inputs may be read in place
/// peers are told at once, and with `zero_copy` this waits until all of them have read what is the
/// caller's.
void close_receive(Context& context, const Exchange& exchange, bool zero_copy);

/// Sorts the peers of one operation by what their cells say. `expected`, if given, has the number
/// of records per rank that must have come; otherwise up to `records_max` are accepted.
struct Verdict {
  RankSet accepted;
  RankSet refused;
  RankSet mismatched;
  int first_mismatch = -1;
};
Verdict judge_cells(const Context& context, protocol::CellKind cell, int bank,
                    const protocol::CellContent& own, const RankSet& missing,
                    const std::int32_t* expected, std::int32_t records_max);

/// The mismatch of one peer as a Status with both values.
Status mismatch_status(const protocol::CellContent& own, const protocol::CellContent& seen,
                       int peer, const char* operation, std::uint64_t epoch);

}  // namespace sluice::engine::cpu
