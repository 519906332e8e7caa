// SPDX-License-Identifier: MIT
#include "engine/cpu/node_heads.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "protocol/epochs.hpp"
#include "window/dispatch_header.hpp"

namespace sluice::engine::cpu {

using protocol::CellKind;
using window::RelayHead;

NodeHeads::NodeHeads(Context& context, std::uint64_t epoch, bool weights,
                     std::vector<std::int32_t>& headers)
    : context_(context), epoch_(epoch), weights_(weights), headers_(headers) {
  if (context.relay == nullptr) return;
  std::fill(headers_.begin(), headers_.end(), 0);
  const window::RelayLayout& own = context.relay->site().own();
  for (int node = 0; node < context.nodes().nodes(); ++node) {
    if (node == context.relay->site().own_node()) continue;
    std::memset(head(node) + own.head_groups(), 0,
                static_cast<std::size_t>(own.groups(context.config.tokens_max)));
  }
}

std::byte* NodeHeads::head(int node) const noexcept {
  const int bank = protocol::bank_of(epoch_, context_.config.window.banks);
  return context_.lanes.window(context_.rank()) +
         context_.relay->site().own().out_head(node, weights_, bank);
}

void NodeHeads::add(int token, const std::int32_t* ids, const float* weights,
                    const routing::Destinations& to) {
  if (context_.relay == nullptr) return;
  const window::RelayLayout& own = context_.relay->site().own();
  const int own_node = context_.relay->site().own_node();
  std::uint32_t left = 0;  // routes to other nodes
  for (const routing::Destination& destination : to) {
    const int node = context_.nodes().node_of(destination.rank);
    if (node != own_node && !context_.suspects.contains(destination.rank)) left |= destination.mask;
  }
  while (left != 0) {
    const int node =
        context_.nodes().node_of(context_.config.map.rank_of(ids[std::countr_zero(left)]));
    std::byte* const at = head(node);
    std::byte* const out =
        at + own.head_headers() +
        static_cast<std::size_t>(headers_[static_cast<std::size_t>(node)]++) * own.header_bytes();
    at[own.head_groups() + static_cast<std::size_t>(token / own.group_rows())] = std::byte{1};
    std::uint32_t there = 0;  // Of the routes that are left, those to this node.
    for (std::uint32_t routes = left; routes != 0; routes &= routes - 1) {
      const int k = std::countr_zero(routes);
      if (context_.nodes().node_of(context_.config.map.rank_of(ids[k])) == node) there |= 1U << k;
    }
    window::write_dispatch_header(out, context_.top_k(), token, weights, there,
                                  [&](int k) { return ids[k]; });
    left &= ~there;
  }
}

void NodeHeads::publish(const protocol::CellContent& content,
                        const std::vector<std::int32_t>& records, std::size_t row_bytes,
                        bool known) {
  if (context_.relay == nullptr) return;
  const window::RelayLayout& own = context_.relay->site().own();
  for (int node = 0; node < context_.nodes().nodes(); ++node) {
    if (node == context_.relay->site().own_node()) continue;
    std::byte* const at = head(node);
    auto* out = reinterpret_cast<std::int32_t*>(at + own.head_records());
    bool anyone = false;
    for (const int rank : context_.nodes().ranks_of(node)) {
      const bool given_up = context_.suspects.contains(rank);
      anyone = anyone || !given_up;
      *out++ = given_up ? -1 : records[static_cast<std::size_t>(rank)];
    }
    if (!anyone) continue;
    RelayHead head;
    head.epoch = epoch_;
    head.content = content;
    head.headers = headers_[static_cast<std::size_t>(node)];
    head.headers_sent = known ? 0 : head.headers;
    head.row_bytes = static_cast<std::uint32_t>(row_bytes);
    std::memcpy(at, &head, sizeof(head));
  }
  context_.relay->publish(weights_ ? CellKind::weights : CellKind::dispatch, epoch_);
}

}  // namespace sluice::engine::cpu
