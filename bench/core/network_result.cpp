// SPDX-License-Identifier: MIT
#include "network_result.hpp"

#include <algorithm>

#include "codec/row_kernels.hpp"

namespace sluice::bench {
namespace {

double ratio(double a, double b) {
  return b > 0.0 ? a / b : 0.0;
}

/// Routes that leave their node, over all ranks, mean of the sets.
double routes_between_nodes(const Workload& workload) {
  const Case& bench_case = workload.bench_case;
  return workload.mean_routes([&](int source, int owner) {
    return bench_case.node_of(owner) != bench_case.node_of(source);
  });
}

/// Median, over rounds, of the time from any rank's first put until any rank's last arrival.
double network_us(const NetworkNumbers& numbers, const Case& bench_case, int operation) {
  std::vector<double> rounds;
  for (int i = 0; i < NetworkNumbers::rounds(bench_case); ++i) {
    double first = 0.0;
    double last = 0.0;
    for (int rank = 0; rank < bench_case.ranks; ++rank) {
      const double put = numbers.first_put(rank, operation)[static_cast<std::size_t>(i)];
      if (put > 0.0 && (first == 0.0 || put < first)) first = put;
      last = std::max(last, numbers.last_arrival(rank, operation)[static_cast<std::size_t>(i)]);
    }
    rounds.push_back(std::max(last - first, 0.0));
  }
  return Summary::of(std::move(rounds)).p50;
}

/// Bytes from rank to rank.
class Matrix {
 public:
  explicit Matrix(const routing::NodeMap& nodes)
      : nodes_(nodes),
        out_(static_cast<std::size_t>(nodes.nodes())),
        in_(static_cast<std::size_t>(nodes.nodes())),
        of_ranks_(static_cast<std::size_t>(nodes.ranks())),
        to_ranks_(static_cast<std::size_t>(nodes.ranks())) {}

  void add(int from, int to, double bytes) {
    total_ += bytes;
    of_ranks_[static_cast<std::size_t>(from)] += bytes;
    to_ranks_[static_cast<std::size_t>(to)] += bytes;
    out_[static_cast<std::size_t>(nodes_.node_of(from))] += bytes;
    in_[static_cast<std::size_t>(nodes_.node_of(to))] += bytes;
  }
  void put_into(NetworkOperation& operation) const {
    operation.bytes = total_;
    operation.busiest_node_bytes = std::max(*std::max_element(out_.begin(), out_.end()),
                                            *std::max_element(in_.begin(), in_.end()));
    operation.staged_out_bytes = *std::max_element(of_ranks_.begin(), of_ranks_.end());
    operation.staged_in_bytes = *std::max_element(to_ranks_.begin(), to_ranks_.end());
  }

 private:
  const routing::NodeMap& nodes_;
  double total_ = 0.0;
  std::vector<double> out_, in_;             // By node.
  std::vector<double> of_ranks_, to_ranks_;  // By rank.
};

}  // namespace

NetworkResult NetworkResult::of(const Board& board, const Workload& workload,
                                const NetworkMeter& meter,
                                const std::array<double, 3>& operation_us) {
  const Case& bench_case = workload.bench_case;
  const NetworkNumbers numbers(board, bench_case);
  const routing::NodeMap& nodes = meter.nodes();
  NetworkResult result;
  result.provider = meter.traits().provider;
  result.signals = transport::to_string(meter.traits().signals);
  result.rails = meter.traits().rails;
  result.chunk_bytes = meter.chunk_bytes();
  result.stream_bytes = meter.stream_bytes();
  result.record_bytes = meter.record_bytes();
  result.rounds = NetworkNumbers::rounds(bench_case);
  result.hosts = meter.hosts();
  result.network_namespaces = meter.network_namespaces();
  result.staged = meter.staged();
  for (int series = 0; series < kRawSeries; ++series) {
    const auto samples_of = [&](int rank) {
      return numbers.samples(rank, static_cast<RawSeries>(series));
    };
    const std::span<double> first = samples_of(0);
    std::vector<double> longest(first.begin(), first.end());
    for (int rank = 1; rank < bench_case.ranks; ++rank) {
      const std::span<double> samples = samples_of(rank);
      for (std::size_t i = 0; i < longest.size(); ++i) {
        longest[i] = std::max(longest[i], samples[i]);
      }
    }
    result.raw_us[static_cast<std::size_t>(series)] = Summary::of(std::move(longest));
  }

  Matrix stream(nodes);
  std::array<Matrix, 3> matrices{Matrix(nodes), Matrix(nodes), Matrix(nodes)};
  for (int from = 0; from < bench_case.ranks; ++from) {
    for (int node = 0; node < nodes.nodes(); ++node) {
      if (node == nodes.node_of(from)) continue;
      stream.add(from, nodes.rail_peer(from, node), static_cast<double>(result.stream_bytes));
    }
    for (const int operation : {kDispatch, kCombine}) {
      const std::span<const double> bytes = numbers.bytes_put(from, operation);
      for (int to = 0; to < bench_case.ranks; ++to) {
        const double put = bytes[static_cast<std::size_t>(to)];
        matrices[static_cast<std::size_t>(operation)].add(from, to, put);
        matrices[kPair].add(from, to, put);
      }
    }
  }
  stream.put_into(result.stream);
  result.stream.us = result.raw(RawSeries::stream).p50;
  for (std::size_t i = 0; i < result.operations.size(); ++i) {
    matrices[i].put_into(result.operations[i]);
    result.operations[i].us = operation_us[i];
  }
  NetworkOperation& dispatch = result.operations[kDispatch];
  NetworkOperation& combine = result.operations[kCombine];
  NetworkOperation& pair = result.operations[kPair];
  dispatch.puts_us = result.raw(RawSeries::dispatch_bytes).p50;
  combine.puts_us = result.raw(RawSeries::combine_bytes).p50;
  for (const int operation : {kDispatch, kCombine}) {
    NetworkOperation& of = result.operations[static_cast<std::size_t>(operation)];
    for (std::size_t way = 0; way < kBarePieces.size(); ++way) {
      const double us = result.raw(bare_series(operation, way)).p50;
      if (us <= 0.0 || (of.bare_us > 0.0 && us >= of.bare_us)) continue;
      of.bare_us = us;
      of.bare_pieces = kBarePieces[way];
    }
  }
  if (dispatch.bare_us > 0.0 && combine.bare_us > 0.0) {
    pair.bare_us = dispatch.bare_us + combine.bare_us;
  }
  pair.puts_us = dispatch.puts_us + combine.puts_us;
  dispatch.network_us = network_us(numbers, bench_case, kDispatch);
  combine.network_us = network_us(numbers, bench_case, kCombine);
  pair.network_us = dispatch.network_us + combine.network_us;
  const double routes = routes_between_nodes(workload);
  dispatch.naive_bytes = routes * static_cast<double>(result.record_bytes);
  combine.naive_bytes =
      routes * static_cast<double>(codec::row_bytes(
                   Codec{bench_case.combine_codec, ScaleForm::f32, 128}, bench_case.hidden));
  pair.naive_bytes = dispatch.naive_bytes + combine.naive_bytes;
  pair.one_ways = 2.0;
  return result;
}

double NetworkResult::share_of_stream(int operation) const noexcept {
  return ratio(operations[static_cast<std::size_t>(operation)].gigabytes_per_second(),
               stream.gigabytes_per_second());
}

double NetworkResult::network_share_of_stream(int operation) const noexcept {
  const NetworkOperation& of = operations[static_cast<std::size_t>(operation)];
  return ratio(of.gigabytes_per_second(of.network_us), stream.gigabytes_per_second());
}

double NetworkResult::network_share_of_busy_stream(int operation) const noexcept {
  return network_share_of_stream(operation) *
         ratio(raw(RawSeries::stream_busy).p50, raw(RawSeries::stream).p50);
}

double NetworkResult::times_puts(int operation) const noexcept {
  const NetworkOperation& of = operations[static_cast<std::size_t>(operation)];
  return ratio(of.us, of.puts_us);
}

double NetworkResult::times_one_way(int operation) const noexcept {
  const NetworkOperation& of = operations[static_cast<std::size_t>(operation)];
  return ratio(of.us, of.one_ways * raw(RawSeries::one_way_record).p50);
}

// Copies out, the network and copies in go on side by side; besides, something has to go the whole way.
double NetworkResult::staged_floor_us(int operation) const noexcept {
  const NetworkOperation& of = operations[static_cast<std::size_t>(operation)];
  const double bytes = static_cast<double>(stream_bytes);
  const double out_us = of.staged_out_bytes * ratio(raw(RawSeries::stage_out).p50, bytes);
  const double in_us = of.staged_in_bytes * ratio(raw(RawSeries::stage_in).p50, bytes);
  const double network_us = of.busiest_node_bytes * ratio(stream.us, stream.busiest_node_bytes);
  return std::max({out_us, in_us, network_us}) + of.one_ways * kStagedWayUs;
}

double NetworkResult::times_bare_way(int operation) const noexcept {
  const NetworkOperation& of = operations[static_cast<std::size_t>(operation)];
  return ratio(of.us, of.bare_us);
}

double NetworkResult::times_staged_floor(int operation) const noexcept {
  return ratio(operations[static_cast<std::size_t>(operation)].us, staged_floor_us(operation));
}

}  // namespace sluice::bench
