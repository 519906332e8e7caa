// SPDX-License-Identifier: MIT
#include "peer_floor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "codec/row_kernels.hpp"
#include "numbers.hpp"

namespace sluice::bench {
PeerFloor::PeerFloor(MpiPeer& peer) : peer_(peer) {
  const Case& bench_case = peer.case_;
  SendOrder order(bench_case,
                  peer.per_rank_ ? SendOrder::Rows::per_rank : SendOrder::Rows::per_route);
  for (int set = 0; set < bench_case.sets; ++set) {
    Counts counts;
    for (int source = 0; source < bench_case.ranks; ++source) {
      order.compute(peer.workload_.ids(set, source));
      if (source == peer.rank_) {
        counts.sent = order.rows();
        counts.sent_first = order.firsts();
      }
      counts.received.push_back(order.rows()[index(peer.rank_)]);
    }
    counts.received_first.resize(counts.received.size());
    std::exclusive_scan(counts.received.begin(), counts.received.end(),
                        counts.received_first.begin(), 0);
    counts_.push_back(std::move(counts));
  }
}

std::vector<std::string> PeerFloor::operations() const {
  std::vector<std::string> names = {"exchange out", "exchange back", "copies", "quantise"};
  if (peer_.case_.dispatch_codec.kind != CodecKind::fp8) names.pop_back();
  return names;
}

Status PeerFloor::run(int operation, int set) {
  switch (operation) {
    case 0: return exchange(set, true);
    case 1: return exchange(set, false);
    case 2: copy(set); return {};
    default: quantise(set); return {};
  }
}

Status PeerFloor::exchange(int set, bool out) {
  const Counts& counts = counts_[index(set)];
  const int code =
      out ? MPI_Alltoallv(peer_.send_.data(), counts.sent.data(), counts.sent_first.data(),
                          peer_.record_type_, peer_.received_.data(), counts.received.data(),
                          counts.received_first.data(), peer_.record_type_, peer_.comm_)
          : MPI_Alltoallv(peer_.received_.data(), counts.received.data(),
                          counts.received_first.data(), peer_.result_type_, peer_.send_.data(),
                          counts.sent.data(), counts.sent_first.data(), peer_.result_type_,
                          peer_.comm_);
  if (code == MPI_SUCCESS) return {};
  return Status(StatusCode::io_error, fmt::format("MPI_Alltoallv returned error {}", code));
}

void PeerFloor::copy(int set) {
  const Case& bench_case = peer_.case_;
  const Counts& counts = counts_[index(set)];
  const RecordLayout& record = peer_.record_;
  const std::size_t payload = record.row_bytes + record.scale_bytes + record.meta_bytes;
  const std::size_t sent = index(std::accumulate(counts.sent.begin(), counts.sent.end(), 0));
  const std::size_t received =
      index(std::accumulate(counts.received.begin(), counts.received.end(), 0));
  const std::size_t tokens = index(bench_case.tokens);
  const std::size_t bf16_row = index(bench_case.hidden) * 2;
  // Packed: as many records as are sent, from as many places as there are tokens.
  const std::size_t x_bytes = tokens * bf16_row;
  for (std::size_t i = 0; i < sent; ++i) {
    const std::size_t from = i % tokens * std::min(bf16_row, payload);
    if (from + payload > x_bytes) break;
    std::memcpy(peer_.send_.data() + i * record.stride, peer_.x(set) + from, payload);
  }
  if (bench_case.layout != Layout::rank_major) {
    for (std::size_t i = 0; i < received; ++i) {  // Unpacked.
      std::memcpy(peer_.rows_.data() + i * record.row_bytes,
                  peer_.received_.data() + i * record.stride, record.row_bytes);
    }
    for (std::size_t i = 0; i < received; ++i) {  // Packed on the way back.
      std::memcpy(peer_.received_.data() + i * peer_.result_bytes_, peer_.y(set) + i * bf16_row,
                  std::min(bf16_row, peer_.result_bytes_));
    }
  }
  // Summed: every row that came home is read once; the sums stay in a cache, as they do there.
  for (std::size_t i = 0; i < sent; ++i) {
    std::memcpy(peer_.out_.data() + i * tokens / sent * bf16_row,
                peer_.send_.data() + i * peer_.result_bytes_,
                std::min(bf16_row, peer_.result_bytes_));
  }
}

void PeerFloor::quantise(int set) {
  const codec::RowKernels& kernels = codec::best_kernels();
  const Case& bench_case = peer_.case_;
  const RecordLayout& record = peer_.record_;
  for (std::size_t token = 0; token < index(bench_case.tokens); ++token) {
    std::byte* to = peer_.send_.data() + token * record.stride;
    kernels.quantise(peer_.x(set) + token * index(bench_case.hidden) * 2, DType::bf16,
                     bench_case.dispatch_codec, bench_case.hidden,
                     reinterpret_cast<std::uint8_t*>(to), to + record.row_bytes);
  }
}

}  // namespace sluice::bench
