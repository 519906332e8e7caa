// SPDX-License-Identifier: MIT
#include "network_meter.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "bootstrap/host_identity.hpp"
#include "codec/row_kernels.hpp"

namespace sluice::bench {
namespace {

/// Round trips of one sample.
constexpr int kRoundTrips = 16;
/// What a progress thread may be late with its counters, after the peer has got all of the operation.
constexpr std::chrono::milliseconds kCounterLag(5);

Status passed(const Result<std::int64_t>& gate) {
  return gate ? Status() : gate.status();
}

/// By now, when nothing is under way.
NetworkUse settled(const Contestant& contestant) {
  NetworkUse use = contestant.network_use();
  for (;;) {
    std::this_thread::sleep_for(kCounterLag);
    NetworkUse again = contestant.network_use();
    if (again == use) return use;
    use = std::move(again);
  }
}

/// A thread that copies memory, from one part of it to the other, as an engine does beside its relay. On the
/// processors of the thread that makes it.
class Copies {
 public:
  Copies() : bytes_(2 * kBytes), thread_([this] { run(); }) {}
  ~Copies() {
    ended_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

 private:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;  // No processor's own cache holds it.

  void run() {
    while (!ended_.load(std::memory_order_relaxed)) {  // Only the thread's end hangs on it.
      std::memcpy(bytes_.data(), bytes_.data() + kBytes, kBytes);
    }
  }

  std::vector<std::byte> bytes_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

std::string network_namespace() {
  struct stat facts {};
  return ::stat("/proc/self/ns/net", &facts) == 0 ? std::to_string(facts.st_ino) : std::string();
}

}  // namespace

NetworkMeter::NetworkMeter(bootstrap::Group& group, std::unique_ptr<RawNetwork> raw,
                           const Case& bench_case, Place& place)
    : group_(group),
      place_(place),
      raw_(std::move(raw)),
      case_(bench_case),
      record_bytes_(codec::row_bytes(bench_case.dispatch_codec, bench_case.hidden) +
                    codec::scale_bytes(bench_case.dispatch_codec, bench_case.hidden)) {}

Result<std::unique_ptr<NetworkMeter>> NetworkMeter::open(World& world, const Case& bench_case,
                                                         Place& place) {
  // Of the longer one, a combine's.
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(bench_case.tokens) *
      codec::row_bytes({bench_case.combine_codec, ScaleForm::f32, 128}, bench_case.hidden);
  Result<std::unique_ptr<RawNetwork>> raw =
      RawNetwork::open(*world.group(), place.pci_address(), bytes, bench_case.deadline_s);
  if (!raw) return raw.status();
  std::unique_ptr<NetworkMeter> meter(
      new NetworkMeter(*world.group(), std::move(raw).value(), bench_case, place));
  if (Status status = meter->look_around(world); !status) return status;
  Result<std::unique_ptr<Staging>> staging = place.staging(meter->stream_bytes());
  if (!staging) return staging.status();
  meter->staging_ = std::move(staging).value();
  return meter;
}

Status NetworkMeter::look_around(World& world) {
  Result<std::vector<std::string>> hosts = world.all_gather(bootstrap::host_name());
  if (!hosts) return hosts.status();
  hosts_ = std::move(hosts).value();
  const Result<std::vector<std::string>> spaces = world.all_gather(network_namespace());
  if (!spaces) return spaces.status();
  network_namespaces_ =
      static_cast<int>(std::set<std::string>(spaces->begin(), spaces->end()).size());
  return {};
}

Status NetworkMeter::watch(Board& board, Contestant& contestant, Progress& progress) {
  const int turns = std::max(case_.sets, NetworkNumbers::rounds(case_));
  for (int turn = 0; turn < turns; ++turn) {
    progress.tick("watching the network", turn, turns);
    for (const int operation : {kDispatch, kCombine}) {
      if (Status status = watch_one(board, contestant, operation, turn); !status) return status;
    }
  }
  if (Status status = passed(board.pass()); !status) return status;
  // How much each rank puts, for others to wait for.
  if (Status status = board.spread(); !status) return status;
  return staging_ != nullptr ? open_bare_way(board) : Status();
}

Status NetworkMeter::watch_one(Board& board, Contestant& contestant, int operation, int turn) {
  const NetworkNumbers numbers(board, case_);
  const NetworkUse before = settled(contestant);
  const Result<std::int64_t> start_ns = board.pass();
  if (!start_ns) return start_ns.status();
  if (Status status = contestant.run(operation, turn % case_.sets); !status) return status;
  // What all have got has been put.
  if (Status status = passed(board.pass(Board::sleep)); !status) return status;
  const NetworkUse after = settled(contestant);
  if (turn < case_.sets) {
    const std::span<double> mean = numbers.bytes_put(board.rank(), operation);
    for (std::size_t peer = 0; peer < mean.size(); ++peer) {
      mean[peer] += static_cast<double>(after.bytes[peer] - before.bytes[peer]) / case_.sets;
    }
  }
  if (turn < NetworkNumbers::rounds(case_)) {
    const auto i = static_cast<std::size_t>(turn);
    const auto us = [&](std::int64_t time_ns) {
      return static_cast<double>(time_ns - *start_ns) * 1e-3;
    };
    numbers.first_put(board.rank(), operation)[i] = us(after.first_put_ns);
    numbers.last_arrival(board.rank(), operation)[i] = us(after.last_arrival_ns);
  }
  return {};
}

std::vector<std::uint64_t> NetworkMeter::bytes_of(const NetworkNumbers& numbers, int from,
                                                  RawSeries series) const {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(case_.ranks));
  if (series == RawSeries::stream || series == RawSeries::stream_busy) {
    for (int node = 0; node < nodes().nodes(); ++node) {
      if (node == nodes().node_of(from)) continue;
      bytes[static_cast<std::size_t>(nodes().rail_peer(from, node))] = stream_bytes();
    }
    return bytes;
  }
  const int operation = series == RawSeries::dispatch_bytes ? kDispatch : kCombine;
  const std::span<const double> mean = numbers.bytes_put(from, operation);
  for (std::size_t peer = 0; peer < bytes.size(); ++peer) {
    bytes[peer] = static_cast<std::uint64_t>(std::llround(mean[peer]));
  }
  return bytes;
}

Status NetworkMeter::time_exchange(Board& board, RawSeries series, int round) {
  if (series != RawSeries::stream_busy) return exchange(board, series, round);
  const Copies copies;
  return exchange(board, series, round);
}

Status NetworkMeter::exchange(Board& board, RawSeries series, int round) {
  const NetworkNumbers numbers(board, case_);
  const std::vector<std::uint64_t> own = bytes_of(numbers, board.rank(), series);
  int expected = 0;
  for (int from = 0; from < case_.ranks; ++from) {
    expected +=
        raw_->chunks_of(bytes_of(numbers, from, series)[static_cast<std::size_t>(board.rank())]);
  }
  const Result<std::int64_t> start_ns = board.pass();
  if (!start_ns) return start_ns.status();
  if (Status status = raw_->exchange(own, expected); !status) return status;
  numbers.samples(board.rank(), series)[static_cast<std::size_t>(round)] =
      static_cast<double>(base::now_ns() - *start_ns) * 1e-3;
  return finish(board);
}

// Nothing moves while nobody polls, also what others wait for.
Status NetworkMeter::finish(Board& board) {
  if (Status status = raw_->settle(); !status) return status;
  Status polled;
  const Status met = passed(board.pass([&] {
    if (Status status = raw_->poll(); !status && polled) polled = status;
  }));
  return met ? polled : met;
}

// Rank 0 and its rail peer on the next node, each of which is the other's; all others sleep.
Status NetworkMeter::time_one_way(Board& board, RawSeries series, std::uint64_t bytes, int round) {
  const int other = nodes().rail_peer(0, 1);
  if (board.rank() != 0 && board.rank() != other) {
    if (Status status = passed(board.pass(Board::sleep)); !status) return status;
    return passed(board.pass(Board::sleep));
  }
  const bool leads = board.rank() == 0;
  const int peer = leads ? other : 0;
  if (Status status = passed(board.pass()); !status) return status;
  // The first one finds the other awake.
  if (Status status = raw_->ping_pong(peer, bytes, 1, leads); !status) return status;
  const std::int64_t start_ns = base::now_ns();
  if (Status status = raw_->ping_pong(peer, bytes, kRoundTrips, leads); !status) return status;
  if (leads) {
    NetworkNumbers(board, case_).samples(0, series)[static_cast<std::size_t>(round)] =
        static_cast<double>(base::now_ns() - start_ns) * 1e-3 / (2 * kRoundTrips);
  }
  return finish(board);
}

Status NetworkMeter::time_staging(Board& board, int round) {
  const NetworkNumbers numbers(board, case_);
  for (const RawSeries series : {RawSeries::stage_out, RawSeries::stage_in}) {
    if (Status status = passed(board.pass()); !status) return status;
    const Result<double> us = staging_->time(series == RawSeries::stage_out);
    if (!us) return us.status();
    numbers.samples(board.rank(), series)[static_cast<std::size_t>(round)] = *us;
  }
  return {};
}

BarePlan NetworkMeter::bare_plan(const NetworkNumbers& numbers, int rank, int operation,
                                 int pieces) const {
  std::vector<std::vector<std::uint64_t>> put;
  for (int from = 0; from < case_.ranks; ++from) {
    put.push_back(
        bytes_of(numbers, from,
                 operation == kDispatch ? RawSeries::dispatch_bytes : RawSeries::combine_bytes));
  }
  return BarePlan::of(
      case_.ranks, rank,
      [&](int from, int to) {
        return put[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
      },
      pieces, raw_->traits().put_bytes_max);
}

// All ranks' memory is of one size, so that each knows where the others' halves lie; and none leaves out a case that others time:
// where any has more pieces than a kernel takes.
Status NetworkMeter::open_bare_way(const Board& board) {
  const NetworkNumbers numbers(board, case_);
  std::uint64_t out_bytes = 0;
  std::uint64_t in_bytes = 0;
  for (const int operation : {kDispatch, kCombine}) {
    for (std::size_t way = 0; way < kBarePieces.size(); ++way) {
      std::size_t most = 0;
      for (int rank = 0; rank < case_.ranks; ++rank) {
        const BarePlan plan = bare_plan(numbers, rank, operation, kBarePieces[way]);
        out_bytes = std::max(out_bytes, plan.out_bytes);
        in_bytes = std::max(in_bytes, plan.in_bytes);
        most = std::max({most, plan.out.size(), plan.in.size()});
      }
      if (most > Shuttle::kPiecesMax) continue;
      bare_cases_.push_back({bare_series(operation, way),
                             bare_plan(numbers, board.rank(), operation, kBarePieces[way])});
    }
  }
  auto way = BareWay::open(group_, place_, out_bytes, in_bytes, case_.deadline_s);
  if (!way) return way.status();
  bare_way_ = std::move(way).value();
  return {};
}

Status NetworkMeter::time_bare_way(Board& board, int round) {
  // Queued ahead by the thread that puts: no more than a stream takes without waiting.
  constexpr int kOperationsMax = 64;
  const NetworkNumbers numbers(board, case_);
  for (const BareCase& timed : bare_cases_) {
    const Result<double> us =
        bare_way_->time(board, timed.plan, std::min(case_.chain, kOperationsMax));
    if (!us) return us.status();
    numbers.samples(board.rank(), timed.series)[static_cast<std::size_t>(round)] = *us;
  }
  return {};
}

Status NetworkMeter::measure(Board& board, int first, int end, Progress& progress) {
  // The first puts to a peer connect to it: this sample is replaced.
  if (Status status = time_exchange(board, RawSeries::stream, first); !status) return status;
  for (int round = first; round < end; ++round) {
    progress.tick("measuring the network", round, end);
    for (const RawSeries series : {RawSeries::stream, RawSeries::stream_busy,
                                   RawSeries::dispatch_bytes, RawSeries::combine_bytes}) {
      if (Status status = time_exchange(board, series, round); !status) return status;
    }
    for (const auto& [series, bytes] : {std::pair{RawSeries::one_way_record, record_bytes_},
                                        std::pair{RawSeries::one_way_word, std::uint64_t{8}}}) {
      if (Status status = time_one_way(board, series, bytes, round); !status) return status;
    }
    if (staging_ == nullptr) continue;
    if (Status status = time_staging(board, round); !status) return status;
  }
  // Not between raw puts, which are slower behind it.
  for (int round = first; bare_way_ != nullptr && round < end; ++round) {
    progress.tick("measuring the bare way", round, end);
    if (Status status = time_bare_way(board, round); !status) return status;
  }
  return passed(board.pass());
}

}  // namespace sluice::bench
