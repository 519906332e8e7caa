// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry_launcher.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>

#include "memory/cuda/cuda_status.hpp"
#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {

using protocol::HostAccess;
using window::kPacketBytes;

namespace {

constexpr std::uint64_t kBlocks = kFerryBlocks;

}  // namespace

FerryPort::~FerryPort() {
  const memory::DeviceGuard guard(device);
  if (stream != nullptr) {
    // Its kernels end when nothing comes.
    (void)cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
}

Ferry::Ferry(const FerryPort& port)
    : gpu_(port.device), port_(port), launches_(port.device, [&port](std::uint64_t number) {
        return memory::cuda_status(
            static_cast<cudaError_t>(launch_ferry(port.args, number, port.stream)),
            "launching a ferry");
      }) {}

void Ferry::carry_pieces(std::size_t from, std::size_t to, std::size_t bytes, std::uint16_t ranks,
                         int source, std::uint32_t what) {
  std::size_t packets = (bytes + kPacketBytes - 1) / kPacketBytes;
  std::size_t packet = from / kPacketBytes;
  // About as much for each block, and something for all lanes of a warp.
  constexpr std::size_t kLanes = 32;
  static_assert(kFerryPackets % kLanes == 0);
  const std::size_t rounds = (packets + kBlocks * kFerryPackets - 1) / (kBlocks * kFerryPackets);
  const std::size_t pieces = std::max<std::size_t>(rounds, 1) * kBlocks;
  const std::size_t each = (packets + pieces * kLanes - 1) / (pieces * kLanes) * kLanes;
  while (packets > 0) {
    const std::size_t piece = std::min(packets, each);
    add({packet | to << 32, std::uint64_t{ranks} << 16 | piece}, source, what);
    packets -= piece;
    packet += piece;
    to += piece * kPacketBytes;
  }
}

void Ferry::carry_row(Token token, std::uint32_t tag, std::size_t packets, std::uint16_t ranks) {
  add({tag | place_of(token), std::uint64_t{ranks} << 16 | packets}, token.source, FerryItem::kRow);
}

void Ferry::carry_answer(Token token, std::size_t packets, bool row_per_route) {
  add({place_of(token), packets | (row_per_route ? FerryItem::kRowPerRoute : 0)}, token.source,
      FerryItem::kAnswer);
}

void Ferry::carry_sum(Token token, std::uint32_t tag, DType codec, std::uint16_t places) {
  const std::uint32_t what = codec == DType::f32   ? FerryItem::kSumOfF32
                             : codec == DType::f16 ? FerryItem::kSumOfF16
                                                   : FerryItem::kSumOfBf16;
  add({tag | place_of(token), std::uint64_t{places} << 16}, token.source, what);
}

void Ferry::carry_sum_answer(Token token, std::size_t packets) {
  add({place_of(token), packets}, token.source, FerryItem::kSumAnswer);
}

std::uint64_t Ferry::place_of(const Token& token) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(token.bank) << FerryItem::kTokenBits |
                       static_cast<std::uint32_t>(token.token)}
         << 32;
}

FerryItem Ferry::word_at(std::size_t to, std::uint64_t word) noexcept {
  constexpr std::uint64_t kHalf = 0xffff'ffff;
  return {(word & kHalf) | to << 32, word >> 32};
}

void Ferry::tell(std::size_t to, std::uint64_t word, int source) {
  add(word_at(to, word), source, FerryItem::kTold);
}

void Ferry::tell_summed(std::size_t to, std::uint64_t epoch, int source) {
  add(word_at(to, epoch), source, FerryItem::kSummed);
}

void Ferry::accuse(std::size_t to, std::uint16_t ranks, int source) {
  add({to << 32, std::uint64_t{ranks} << 16}, source, FerryItem::kAccused);
}

void Ferry::add(FerryItem item, int source, std::uint32_t what) {
  item.high |= FerryItem::label_bits(source, what);
  waiting_.push_back(item);
}

// For the next item, in the ring whose turn it is.
bool Ferry::has_room() const noexcept {
  return pushed_ / kBlocks - done_[pushed_ % kBlocks] < kFerryRing;
}

void Ferry::push(FerryItem item) {
  const std::uint64_t ring = pushed_ % kBlocks;
  const std::uint64_t number = pushed_ / kBlocks;
  auto* const at = reinterpret_cast<FerryItem*>(port_.host + port_.rings) + ring * kFerryRing +
                   number % kFerryRing;
  item.high |= FerryItem::turn_bits(number);
  HostAccess::store_relaxed(at->low, item.low);
  HostAccess::store_release(at->high, item.high);  // Pairs with the load in await_items().
  ++pushed_;
}

std::uint64_t& Ferry::line(int number) const noexcept {
  return *reinterpret_cast<std::uint64_t*>(port_.host + port_.rings + kFerryItemsBytes +
                                           static_cast<std::size_t>(number) * window::kLineBytes);
}

void Ferry::expect(bool more) {
  if (more == expects_) return;
  expects_ = due_ = more;
  // Pairs with the load in Launched::expects(). Where that sees an old one, the launch ends early, or late.
  HostAccess::store_relaxed(line(kFerryExpectsLine), std::uint64_t{more});
}

// What has been carried. Item i is in ring i modulo kBlocks: the first of each that has not been is known.
bool Ferry::count() {
  std::uint64_t carried = pushed_;
  for (std::uint64_t ring = 0; ring < kBlocks; ++ring) {
    // Pairs with the store in carry_ring().
    done_[ring] = HostAccess::load_acquire(line(static_cast<int>(ring)));
    carried = std::min(carried, done_[ring] * kBlocks + ring);
  }
  const bool any = carried != carried_;
  carried_ = carried;
  return any;
}

bool Ferry::ended() const noexcept {
  return HostAccess::load_acquire(line(kFerryEndedLine)) ==
         launched_;  // Pairs with the store of ferry_kernel.
}

bool Ferry::step() {
  // Before the counts: what a launch that has ended has not carried, an operation's blocks may, or nobody.
  const bool has_ended = ended();
  bool any = count();
  const Status status = launches_.status();
  if (!status.ok())
    throw std::runtime_error(status.to_string());  // The thread gives all others up.
  if (!waiting_.empty()) flush();
  for (; !waiting_.empty() && has_room(); waiting_.pop_front()) {
    push(waiting_.front());
    any = true;
  }
  if (!has_ended || (carried_ == pushed_ && !due_)) return any;
  due_ = false;
  launches_.launch(++launched_);
  return true;
}

// What items speak of has arrived: kernels shall see it.
void Ferry::flush() {
  const Status status = port_.rows.flush();
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

}  // namespace sluice::engine::cuda
