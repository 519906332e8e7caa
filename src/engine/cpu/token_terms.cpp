// SPDX-License-Identifier: MIT
#include "engine/cpu/token_terms.hpp"

#include <algorithm>
#include <bit>

#include "base/mutants.hpp"
#include "protocol/epochs.hpp"
#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"

namespace sluice::engine::cpu {
namespace {

using base::mutant;
using base::Mutant;
using protocol::CellKind;

// Routes come by rank; a single chain takes them by k.
void sort(TokenTerms& out) {
  std::sort(out.terms.begin(), out.terms.begin() + out.count,
            [](const TokenTerms::Term& a, const TokenTerms::Term& b) { return a.k < b.k; });
}

}  // namespace

TermFinder::TermFinder(Context& context, CombineOperation& operation, const HandleArrays& handle,
                       const RankSet& accepted)
    : context_(context),
      operation_(operation),
      handle_(handle),
      bank_(protocol::bank_of(operation.epoch, context.config.window.banks)),
      single_(operation.request.reduce == Reduce::single),
      by_node_(operation.request.reduce == Reduce::node),
      codec_dtype_(combine_dtype(operation)) {
  std::fill(operation.next_slot.begin(), operation.next_slot.end(), 0);
  for (int rank = 0; rank < context.ranks(); ++rank) {
    operation.answers[static_cast<std::size_t>(rank)] =
        accepted.contains(rank) ? answers_of(rank) : Answers();
  }
  if (!by_node_ || !context.nodes().several()) return;
  for (int node = 0; node < context.nodes().nodes(); ++node) judge_node(node, accepted);
}

// The sum of another node is taken or dropped whole: as long as no rank that is in it, with rows, was
// given up or made another call. Who is in it is said behind its head, which is there before the first of their cells is
// published here: of who was given up meanwhile the cell may not be yet.
void TermFinder::judge_node(int node, const RankSet& accepted) {
  Answers& sums = operation_.node_answers[static_cast<std::size_t>(node)];
  sums = {};
  if (node == context_.nodes().node_of(context_.rank())) return;
  const auto ranks = context_.nodes().ranks_of(node);
  for (const int rank : ranks) {
    const protocol::Cell& cell = context_.lanes.cell_in(rank, CellKind::combine, bank_);
    // Pairs with protocol::publish in Inbox::publish_cells.
    if (!protocol::arrived<protocol::HostAccess>(cell, operation_.epoch)) continue;
    if (cell.content.in_sum == 0 || cell.content.records == 0 || !accepted.contains(rank)) continue;
    sums.accepted = true;
    sums.slots = context_.lanes.window(context_.rank()) + cell.content.row_offset;
    sums.slot_stride = cell.content.row_stride;
  }
  if (sums.accepted) {
    const window::RelayLayout& own = context_.relay->site().own();
    const int server = context_.nodes().rail_peer(context_.rank(), node);
    const auto* const cells = reinterpret_cast<const protocol::Cell*>(
        context_.lanes.window(context_.rank()) + own.answer_head(server, /*sums=*/true, bank_) +
        window::kAnswerHeadBytes);
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const protocol::CellContent& content = cells[place].content;
      if (content.in_sum == 0 || content.records == 0) continue;
      sums.accepted = sums.accepted && accepted.contains(ranks[place]);
    }
  }
  for (const int rank : ranks) {
    Answers& answers = operation_.answers[static_cast<std::size_t>(rank)];
    answers.accepted = answers.accepted && sums.accepted;
  }
}

void TermFinder::find(int token, TokenTerms& out) {
  const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(token) * context_.top_k();
  ids_ = handle_.topk_ids + first;
  weights_ = operation_.weights.data() + first;
  out.clear();
  const routing::Destinations destinations(ids_, context_.top_k(), context_.config.map);
  for (const routing::Destination& from : destinations) {
    out.expected |= from.mask;
    const Answers& answers = operation_.answers[static_cast<std::size_t>(from.rank)];
    if (!answers.accepted || (by_node_ && !context_.together(from.rank))) continue;
    if (answers.in_place) {
      take_rows(answers, from, out);
    } else if (single_) {
      take_routes(answers, from, out);
    } else {
      take_sum(answers, from, out);
    }
  }
  if (by_node_) take_nodes(token, destinations, out);
  if (single_) {
    out.weighted = !operation_.request.plain_sum;
    if (!mutant(Mutant::single_unsorted)) sort(out);
  }
}

// Sums of other nodes are numbered by token. Nodes are numbered by their lowest rank.
void TermFinder::take_nodes(int token, const routing::Destinations& destinations, TokenTerms& out) {
  const int own = context_.nodes().node_of(context_.rank());
  std::array<int, kMaxTopk> nodes;
  int count = 0;
  for (const routing::Destination& from : destinations) {
    const int node = context_.nodes().node_of(from.rank);
    if (std::find(nodes.begin(), nodes.begin() + count, node) == nodes.begin() + count) {
      nodes[static_cast<std::size_t>(count++)] = node;
    }
  }
  std::sort(nodes.begin(), nodes.begin() + count);
  for (int i = 0; i < count; ++i) {
    const int node = nodes[static_cast<std::size_t>(i)];
    const void* sum = nullptr;
    if (node == own) {
      if (out.count == 0) continue;
    } else {
      const Answers& answers = operation_.node_answers[static_cast<std::size_t>(node)];
      if (!answers.accepted) continue;
      const int sender = context_.nodes().rail_peer(context_.rank(), node);
      const std::uint32_t mask = *context_.lanes.combine_mask_in(sender, bank_, token);
      if (mask == 0) continue;
      out.answered |= mask;
      sum = answers.slots + static_cast<std::uint64_t>(token) * answers.slot_stride;
    }
    out.node_sums[static_cast<std::size_t>(out.node_sum_count++)] = sum;
  }
}

Answers TermFinder::answers_of(int rank) const noexcept {
  const auto& content = context_.lanes.cell_in(rank, CellKind::combine, bank_).content;
  Answers answers;
  answers.accepted = true;
  if (rank == context_.rank() && usable_in_place(operation_)) {
    answers.in_place = true;
    answers.y = results_of(operation_);
    answers.route_rows =
        handle_.route_rows + handle_.source_offsets[rank] * std::int64_t{context_.top_k()};
  } else if ((content.flags & protocol::cell_flags::kRegistered) != 0) {
    answers.in_place = true;
    answers.y = results_of(operation_);
    answers.y.dtype = static_cast<DType>(content.row_dtype);
    answers.y.grid = RowGrid(context_.heaps.base(rank) + content.row_offset,
                             static_cast<std::ptrdiff_t>(content.row_stride));
    answers.route_rows = context_.lanes.route_rows_in(rank, bank_, 0);
  } else if (!context_.together(rank)) {
    answers.slots = context_.lanes.window(context_.rank()) + content.row_offset;
    answers.slot_stride = content.row_stride;
  } else if (context_.throughput()) {
    answers.slots = context_.lanes.window(rank) + content.row_offset;
    answers.slot_stride = content.row_stride;
  } else {
    answers.slots =
        context_.lanes.window(context_.rank()) + context_.layout.combine_row(rank, bank_, 0);
    answers.slot_stride = context_.layout.combine_row_stride();
  }
  return answers;
}

// The rows of the token's record at that rank: one term of their sum, or with `single` one each.
void TermFinder::take_rows(const Answers& answers, const routing::Destination& from,
                           TokenTerms& out) {
  const int record = operation_.next_slot[static_cast<std::size_t>(from.rank)]++;
  const RecordRoutes routes{answers.route_rows + std::int64_t{record} * context_.top_k(), ids_,
                            weights_, context_.top_k()};
  if (single_) {
    for (std::uint32_t left = routing::distinct_routes(ids_, from.mask); left != 0;
         left &= left - 1) {
      const int k = std::countr_zero(left);
      if (routes.rows[k] < 0) continue;
      out.answered |= routing::routes_to_same(ids_, from.mask, k);
      out.add(answers.y.grid.row(routes.rows[k]),
              routing::merged_weight(ids_, weights_, from.mask, k), k);
      count_bytes(from.rank, 1, answers.y.dtype);
    }
    return;
  }
  PartialSum& sum = out.converted[static_cast<std::size_t>(out.converted_count)];
  gather(answers.y, routes, sum);
  // A record of other routes than the token has there is none of its records.
  if (sum.present != from.mask || sum.answered == 0) return;
  out.answered |= sum.answered;
  count_bytes(from.rank, sum.count, sum.dtype);
  if (sum.dtype != codec_dtype_) {
    const auto row = static_cast<std::size_t>(out.converted_count++);
    out.add(context_.sum_rows.data() + row * context_.config.window.combine_row_bytes, 1.0F, 0);
    out.end_group(1);
    return;
  }
  for (int i = 0; i < sum.count; ++i) {
    const codec::SumTerm& term = sum.terms[static_cast<std::size_t>(i)];
    out.add(term.row, term.weight, 0);
  }
  out.end_group(sum.count);
  out.weighted = out.weighted || sum.weighted || sum.count > 1;
}

void TermFinder::take_routes(const Answers& answers, const routing::Destination& from,
                             TokenTerms& out) {
  for (std::uint32_t left = routing::distinct_routes(ids_, from.mask); left != 0;
       left &= left - 1) {
    const int k = std::countr_zero(left);
    take_slot(answers, from, routing::merged_weight(ids_, weights_, from.mask, k), k, out);
  }
}

void TermFinder::take_sum(const Answers& answers, const routing::Destination& from,
                          TokenTerms& out) {
  const int before = out.count;
  take_slot(answers, from, 1.0F, 0, out);
  if (out.count > before) out.end_group(1);
}

void TermFinder::take_slot(const Answers& answers, const routing::Destination& from, float weight,
                           int k, TokenTerms& out) {
  const int slot = operation_.next_slot[static_cast<std::size_t>(from.rank)]++;
  const std::uint32_t mask = *context_.lanes.combine_mask_in(from.rank, bank_, slot) & from.mask;
  if (mask == 0) return;
  out.answered |= mask;
  out.add(answers.slots + static_cast<std::uint64_t>(slot) * answers.slot_stride, weight, k);
  if (context_.throughput() && context_.together(from.rank)) {
    count_bytes(from.rank, 1, codec_dtype_);
  }
}

// Rows that are loaded from another rank's memory.
void TermFinder::count_bytes(int rank, int rows, DType dtype) noexcept {
  if (rank == context_.rank()) return;
  context_.statistics.combine_wire_bytes +=
      std::int64_t{rows} * context_.hidden() * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace sluice::engine::cpu
