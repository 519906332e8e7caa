// SPDX-License-Identifier: MIT
#include "relay/postings.hpp"

#include <algorithm>

#include "base/deadline.hpp"
#include "protocol/host_access.hpp"
#include "transport/message.hpp"

namespace sluice::relay {
namespace {

// To one peer, before the next one's turn.
constexpr std::uint64_t kTurnChunks = 4;
// What is posted and not sent is ahead of signs of life, which must not take long on a slow network: so much, divided by the
// nodes, to each peer, or as many chunks where that is more.
constexpr std::uint64_t kUnsentBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kUnsentChunks = 2;

}  // namespace

Postings::Postings(transport::Endpoint& endpoint, const Site& site)
    : endpoint_(endpoint),
      site_(site),
      banks_(static_cast<std::size_t>(site.window.shape().banks)),
      unsent_max_(std::max(kUnsentBytes / static_cast<std::uint64_t>(site.nodes.nodes()),
                           kUnsentChunks * site.chunk_bytes)),
      to_(static_cast<std::size_t>(site.nodes.ranks())),
      waiting_(site.nodes.ranks()),
      outstanding_(protocol::kKinds * banks_) {
  for (int peer = 0; peer < site.nodes.ranks(); ++peer) {
    if (site.nodes.together(peer, site.rank)) continue;
    to(peer).uses.resize(static_cast<std::size_t>(site.layout(peer).slots_per_source()));
    to(peer).outstanding.resize(outstanding_.size());
  }
}

void Postings::sign(int peer, window::Sign sign, int place, std::uint32_t number) {
  if (to(peer).closed) return;
  const int slot = site_.layout(peer).sign_slot(site_.rank, sign, place);
  to(peer).signs.push(transport::Signal::numbered(slot, number).encode());
  waiting_.insert(turn_of(peer));
}

void Postings::begin(int peer, int slot, Account account, transport::Region to_region) {
  peer_ = peer;
  slot_ = slot;
  region_ = to_region;
  account_ = number(account);
  first_ = to(peer).chunks.size();
}

void Postings::add(transport::Region from, std::uint64_t from_offset, std::uint64_t to_offset,
                   std::uint64_t bytes) {
  transport::Chunk chunk;
  chunk.peer = peer_;
  chunk.from = from;
  chunk.to = region_;
  for (std::uint64_t done = 0; done < bytes; done += chunk.bytes) {
    chunk.from_offset = from_offset + done;
    chunk.to_offset = to_offset + done;
    chunk.bytes = static_cast<std::uint32_t>(std::min(bytes - done, site_.chunk_bytes));
    chunk.context = account_ << kBytesBits | chunk.bytes;
    to(peer_).chunks.push(chunk);
  }
}

void Postings::add_rows(transport::Region from, std::uint64_t from_offset,
                        std::uint64_t from_stride, std::uint64_t to_offset, std::uint64_t to_stride,
                        std::uint64_t row_bytes, int rows) {
  const auto count = static_cast<std::uint64_t>(rows);
  if (from_stride == to_stride) {
    add(from, from_offset, to_offset, (count - 1) * to_stride + row_bytes);
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    add(from, from_offset + i * from_stride, to_offset + i * to_stride, row_bytes);
  }
}

void Postings::end() {
  To& queue = to(peer_);
  if (queue.closed) {
    queue.chunks.truncate(first_);
    return;
  }
  ++queue.messages;
  waiting_.insert(turn_of(peer_));
  const auto chunks = static_cast<int>(queue.chunks.size() - first_);
  std::uint8_t& use =
      queue.uses[static_cast<std::size_t>(slot_ - site_.layout(peer_).first_slot(site_.rank))];
  const std::uint32_t immediate = transport::Signal{slot_, chunks, use++}.encode();
  for (std::size_t i = first_; i < queue.chunks.size(); ++i) queue.chunks[i].immediate = immediate;
  queue.outstanding[account_] += static_cast<std::uint32_t>(chunks);
  outstanding_[account_] += static_cast<std::uint32_t>(chunks);
}

bool Postings::post() {
  bool any = false;
  waiting_.for_each([&](int turn) {
    const int peer = peer_of(turn);
    To& queue = to(peer);
    post_signs(peer, queue);
    if (!queue.held) any |= post_chunks(peer, queue);
    if (posted(peer)) waiting_.erase(turn);
  });
  return any;
}

void Postings::post_signs(int peer, To& queue) {
  transport::Chunk chunk;
  chunk.peer = peer;
  chunk.from = kWindowRegion;
  chunk.to = kWindowRegion;
  chunk.context = kNoAccount;
  while (!queue.signs.empty()) {
    chunk.immediate = queue.signs.front();
    const transport::Posted posted = endpoint_.put(chunk);
    if (posted == transport::Posted::busy) break;
    if (posted == transport::Posted::gone) return close(peer);
    queue.signs.pop();
  }
}

bool Postings::post_chunks(int peer, To& queue) {
  bool any = false;
  std::uint64_t turn = 0;
  while (!queue.chunks.empty() && turn < kTurnChunks * site_.chunk_bytes &&
         queue.unsent < unsent_max_) {
    transport::Chunk& chunk = queue.chunks.front();
    chunk.more = queue.chunks.size() > 1;
    if (account_of(chunk.context) != newest_) note_first(account_of(chunk.context));
    const transport::Posted posted = endpoint_.put(chunk);
    if (posted == transport::Posted::busy) break;
    if (posted == transport::Posted::gone) {
      close(peer);
      return false;
    }
    turn += chunk.bytes;
    queue.unsent += chunk.bytes;
    ++queue.steps;
    queue.chunks.pop();
    any = true;
  }
  if (any) {
    // Pairs with the load in Relay::read.
    protocol::HostAccess::store_release(
        *site_.at<std::uint64_t>(site_.rank, site_.own().bytes_put(peer)),
        endpoint_.bytes_put(peer));
  }
  return any;
}

void Postings::note_first(std::size_t account) {
  newest_ = account;
  // Pairs with the load in Relay::read.
  protocol::HostAccess::store_release(*site_.at<std::uint64_t>(site_.rank, site_.own().first_put()),
                                      static_cast<std::uint64_t>(base::now_ns()));
}

bool Postings::sent(const transport::Event& event) noexcept {
  if (event.context == kNoAccount) return false;
  To& queue = to(event.peer);
  queue.unsent -= bytes_of(event.context);
  ++queue.steps;
  if (queue.settled) return true;
  --queue.outstanding[account_of(event.context)];
  --outstanding_[account_of(event.context)];
  return true;
}

void Postings::close(int peer) noexcept {
  To& queue = to(peer);
  if (queue.closed) return;
  queue.closed = true;
  for (std::size_t i = 0; i < queue.chunks.size(); ++i) {
    --queue.outstanding[account_of(queue.chunks[i].context)];
    --outstanding_[account_of(queue.chunks[i].context)];
  }
  queue.signs.clear();
  queue.chunks.clear();
}

void Postings::settle(int peer) noexcept {
  close(peer);
  To& queue = to(peer);
  if (queue.settled) return;
  queue.settled = true;
  endpoint_.abandon(peer);
  for (std::size_t i = 0; i < outstanding_.size(); ++i) {
    outstanding_[i] -= queue.outstanding[i];
    queue.outstanding[i] = 0;
  }
}

bool Postings::idle() const noexcept {
  return std::all_of(to_.begin(), to_.end(),
                     [](const To& queue) { return queue.chunks.empty(); }) &&
         std::all_of(outstanding_.begin(), outstanding_.end(),
                     [](std::uint32_t chunks) { return chunks == 0; });
}

}  // namespace sluice::relay
