// SPDX-License-Identifier: MIT
#include "relay/inbox.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"
#include "routing/routes.hpp"
#include "sluice/limits.hpp"
#include "window/dispatch_header.hpp"

namespace sluice::relay {

using protocol::Cell;
using protocol::CellKind;
using protocol::HostAccess;
using window::AnswerHead;
using window::DispatchHeaderLayout;
using window::RelayHead;
using window::RelayLayout;
using What = window::RelaySlot::What;

namespace {

std::size_t index(int value) noexcept {
  return static_cast<std::size_t>(value);
}

}  // namespace

Inbox::Inbox(const Site& site)
    : site_(site),
      arrivals_(site.own().slots()),
      dispatches_(index(site.nodes.ranks()) * index(site.own().dispatch_depth())),
      answers_(index(site.nodes.ranks()) * index(site.own().answer_depth())) {
  const RelayLayout& own = site.own();
  const auto dispatch_groups = index(own.groups(site.window.shape().tokens));
  const auto answer_groups = index(own.groups(site.window.combine_slots()));
  for (Groups& groups : dispatches_) groups.come.resize(dispatch_groups);
  for (Groups& groups : answers_) groups.come.resize(answer_groups);
}

Inbox::Groups& Inbox::dispatch_groups(int source, int stage) noexcept {
  return dispatches_[index(source) * index(site_.own().dispatch_depth()) + index(stage)];
}
Inbox::Groups& Inbox::answer_groups(int source, int stage) noexcept {
  return answers_[index(source) * index(site_.own().answer_depth()) + index(stage)];
}

void Inbox::chunk(std::uint32_t immediate) {
  const std::optional<int> complete = arrivals_.note(immediate);
  if (!complete) return;
  arrivals_.take(*complete);
  const window::RelaySlot slot = site_.own().slot(*complete);
  const int banks = site_.window.shape().banks;
  switch (slot.what) {
    case What::sign: break;
    case What::head: take_head(slot.source, slot.index >= banks, slot.index % banks); break;
    case What::rows: take_rows(slot.source, slot.stage, slot.group); break;
    case What::answer: take_answer(slot.source, /*sums=*/false, slot.index); break;
    case What::sums: take_answer(slot.source, /*sums=*/true, slot.index); break;
    case What::answer_rows: take_answer_rows(slot.source, slot.stage, slot.group); break;
  }
}

void Inbox::take_head(int source, bool weights, int bank) {
  const auto& head =
      *site_.at<const RelayHead>(site_.rank, site_.own().in_head(source, weights, bank));
  expand(head, source, weights);
  if (weights || head.row_bytes == 0) return;
  const int stage = site_.own().dispatch_stage(head.epoch);
  dispatch_groups(source, stage).epoch = head.epoch;
  advance(source, stage);
}

// Headers, or weights, and then the cell, into the source's lane at every rank of this node.
void Inbox::expand(const RelayHead& head, int source, bool weights) {
  const RelayLayout& own = site_.own();
  const auto neighbours = site_.neighbours();
  slots_.assign(neighbours.size(), 0);
  for (int header = 0; header < head.headers_sent; ++header) {
    write_header(head, source, header, weights);
  }
  const auto* records = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<const std::byte*>(&head) + own.head_records());
  const auto kind = weights ? CellKind::weights : CellKind::dispatch;
  for (std::size_t place = 0; place < neighbours.size(); ++place) {
    if (records[place] < 0) continue;  // Given up by the source.
    protocol::CellContent content = head.content;
    content.records = records[place];
    content.flags &= ~protocol::cell_flags::kRegistered;
    if (!weights) {
      content.row_offset = own.dispatch_row(source, own.dispatch_stage(head.epoch), 0);
      content.row_stride = site_.window.dispatch_row_stride();
    }
    const int reader = neighbours[place];
    auto& cell = *site_.at<Cell>(reader, site_.window.cell(source, kind, site_.bank(head.epoch)));
    // Pairs with the load in await_cells() of the reader.
    protocol::publish<HostAccess>(cell, content, head.epoch);
    site_.ring(reader);
  }
}

// As the source would have written it at every rank of this node that the token goes to.
void Inbox::write_header(const RelayHead& head, int source, int header, bool weights) {
  const int top_k = site_.top_k;
  const std::byte* from = reinterpret_cast<const std::byte*>(&head) + site_.own().head_headers() +
                          index(header) * site_.own().header_bytes();
  const auto* from_weights =
      reinterpret_cast<const float*>(from + DispatchHeaderLayout::weights_offset);
  const auto* from_ids =
      reinterpret_cast<const std::int16_t*>(from + DispatchHeaderLayout::ids_offset(top_k));
  std::int32_t token = 0;
  std::memcpy(&token, from, sizeof(token));
  std::array<std::int32_t, kMaxTopk> ids;
  std::copy_n(from_ids, top_k, ids.begin());
  const int bank = site_.bank(head.epoch);
  for (const routing::Destination& to : routing::Destinations(ids.data(), top_k, site_.map)) {
    const int slot = slots_[index(site_.nodes.place_of(to.rank))]++;
    if (weights) {
      window::write_weights(
          site_.at<float>(to.rank, site_.window.given_weights(source, bank, slot)), top_k,
          from_weights, to.mask);
    } else {
      window::write_dispatch_header(
          site_.at<std::byte>(to.rank, site_.window.dispatch_header(source, bank, slot)), top_k,
          token, from_weights, to.mask, [&](int k) { return site_.map.local_of(ids[index(k)]); });
    }
  }
}

void Inbox::take_rows(int source, int stage, int group) {
  Groups& groups = dispatch_groups(source, stage);
  groups.come[index(group)] = 1;
  if (groups.epoch != 0) advance(source, stage);
}

// Says how far the rows are there. Groups that have nothing to bring count as come.
void Inbox::advance(int source, int stage) {
  Groups& groups = dispatch_groups(source, stage);
  const RelayLayout& own = site_.own();
  const auto* head = site_.at<const std::byte>(
      site_.rank, own.in_head(source, /*weights=*/false, site_.bank(groups.epoch)));
  const auto* present = reinterpret_cast<const std::uint8_t*>(head + own.head_groups());
  const int all = own.groups(site_.window.shape().tokens);
  while (groups.next < all && (present[groups.next] == 0 || groups.come[index(groups.next)] != 0)) {
    ++groups.next;
  }
  const std::uint64_t rows =
      static_cast<std::uint64_t>(groups.next) * static_cast<std::uint64_t>(own.group_rows());
  // Pairs with the load in await_rows() of the readers: rows, then how many.
  HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, own.landed(source, stage)),
                            groups.epoch << 32 | rows);
  site_.ring_all();
  if (groups.next < all) return;
  std::fill(groups.come.begin(), groups.come.end(), std::uint8_t{0});
  groups.epoch = 0;
  groups.next = 0;
}

const AnswerHead& Inbox::answer_head(int source, bool sums, int bank) const noexcept {
  return *site_.at<const AnswerHead>(site_.rank, site_.own().answer_head(source, sums, bank));
}

void Inbox::take_answer(int source, bool sums, int bank) {
  const RelayLayout& own = site_.own();
  const AnswerHead& head = answer_head(source, sums, bank);
  if (head.cells_only != 0) return publish_cells(source, head);
  const int stage = own.answer_stage(head.epoch);
  Groups& groups = answer_groups(source, stage);
  groups.epoch = head.epoch;
  groups.sums = sums;
  auto* masks = site_.at<std::uint32_t>(site_.rank, site_.window.combine_mask(source, bank, 0));
  // Its ranks may have answered none of this rank's last tokens.
  if (head.by_node != 0) std::fill(masks + head.slots, masks + site_.window.shape().tokens, 0U);
  for (int first = 0; first < head.slots; first += own.group_rows()) {
    const int end = std::min<int>(head.slots, first + own.group_rows());
    const bool rows =
        std::any_of(masks + first, masks + end, [](std::uint32_t mask) { return mask != 0; });
    if (rows && groups.come[index(first / own.group_rows())] == 0) ++groups.missing;
  }
  if (groups.missing == 0) publish_answer(source, groups);
}

void Inbox::take_answer_rows(int source, int stage, int group) {
  Groups& groups = answer_groups(source, stage);
  groups.come[index(group)] = 1;
  if (groups.epoch != 0 && --groups.missing == 0) publish_answer(source, groups);
}

void Inbox::publish_answer(int source, Groups& groups) {
  publish_cells(source, answer_head(source, groups.sums, site_.bank(groups.epoch)));
  std::fill(groups.come.begin(), groups.come.end(), std::uint8_t{0});
  groups.epoch = 0;
  groups.missing = 0;
}

void Inbox::publish_cells(int source, const AnswerHead& head) {
  const RelayLayout& own = site_.own();
  const auto* cells = reinterpret_cast<const Cell*>(reinterpret_cast<const std::byte*>(&head) +
                                                    window::kAnswerHeadBytes);
  const auto ranks = site_.nodes.ranks_of(site_.nodes.node_of(source));
  for (int i = 0; i < head.contents; ++i) {
    const int answerer = head.by_node != 0 ? ranks[index(i)] : source;
    protocol::CellContent content = cells[i].content;
    if (head.by_node != 0 && content.in_sum == 0) continue;
    content.row_offset = own.answer_landing(source, head.epoch, 0);
    content.row_stride = site_.window.combine_row_stride();
    auto& cell = *site_.at<Cell>(
        site_.rank, site_.window.cell(answerer, CellKind::combine, site_.bank(head.epoch)));
    // Pairs with the load in await_cells() of this rank.
    protocol::publish<HostAccess>(cell, content, head.epoch);
  }
  site_.ring(site_.rank);
}

}  // namespace sluice::relay
