// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "cuda_objects.hpp"
#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "stamp.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

enum class Way : std::uint8_t { graph, stream };

/// Captures what `queue` queues on `stream`.
Status capture(cudaStream_t stream, const std::function<Status()>& queue, Graph& graph) {
  Status status = cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                              "beginning a capture");
  if (!status) return status;
  status = queue();
  cudaGraph_t captured = nullptr;
  const Status ended = cuda_status(cudaStreamEndCapture(stream, &captured), "ending a capture");
  if (status) status = ended;
  if (status) {
    status = cuda_status(cudaGraphInstantiate(graph.put(), captured, 0), "making a graph");
  }
  if (captured != nullptr) (void)cudaGraphDestroy(captured);
  return status ? cuda_status(cudaGraphUpload(graph.get(), stream), "uploading a graph") : status;
}

Status replay(cudaStream_t stream, const Graph& graph) {
  return cuda_status(cudaGraphLaunch(graph.get(), stream), "launching a graph");
}

/// A contestant whose operations go to the GPU in one way.
class Launched final : public Contestant {
 public:
  Launched(std::shared_ptr<QueuedContestant> contestant, Place& place, const Case& bench_case,
           Way way)
      : contestant_(std::move(contestant)),
        place_(place),
        stream_(static_cast<cudaStream_t>(place.stream())),
        sets_(bench_case.sets),
        chain_(bench_case.chain),
        way_(way) {}

  std::string name() const override { return contestant_->name() + ", " + way(); }
  Role role() const override { return contestant_->role(); }
  std::string way() const override { return way_ == Way::graph ? "graph" : "stream"; }
  std::string about() const override { return contestant_->about(); }
  std::vector<std::string> operations() const override { return contestant_->operations(); }
  void start_counting() override { contestant_->start_counting(); }
  Traffic traffic() const override { return contestant_->traffic(); }
  NetworkUse network_use() const override { return contestant_->network_use(); }

  Status run(int operation, int set) override {
    Status status = contestant_->run(operation, set);
    return status ? contestant_->settle() : status;
  }

  /// What was timed, as it was timed; then every set by itself.
  Result<std::int64_t> check(int set) override {
    const Result<std::int64_t> wrong = check_alone(set);
    if (set != 0 || !wrong) return wrong;
    const Result<std::int64_t> in_chain = contestant_->check_chain((chain_ - 1) % sets_, [this] {
      const Status status = go(kPair, true);
      return status ? go(kPair, false) : status;
    });
    return in_chain ? Result<std::int64_t>(*wrong + *in_chain) : in_chain;
  }

  Result<std::int64_t> check_alone(int set) {
    if (way_ == Way::stream) return contestant_->check(set);
    return contestant_->check(set, [this](const std::function<Status()>& queue) {
      Graph graph;
      Status status = make(queue, graph);
      if (status) status = replay(stream_, graph);
      // The graph goes before its work has ended otherwise.
      return status ? place_.finish() : status;
    });
  }

  /// In the way that is timed.
  Status profile(int rounds, const std::string& path) override {
    contestant_->start_profile();
    Graph graph;
    Status status;
    if (way_ == Way::graph) status = make([&] { return queue(kPair, rounds); }, graph);
    if (status) status = go(kPair, true);
    // As in time(): kernels on both sides of an event do not overlap.
    if (status) status = cuda_status(cudaEventRecord(begin_.get(), stream_), "an event");
    if (status) status = way_ == Way::graph ? replay(stream_, graph) : queue(kPair, rounds);
    if (status) status = contestant_->settle();
    return status ? contestant_->write_profile(path) : status;
  }

  /// Collective, as all that makes graphs.
  Status prepare(Board& board) {
    board_ = &board;
    for (Event* event : {&begin_, &end_}) {
      if (Status status = cuda_status(cudaEventCreate(event->put()), "an event"); !status) {
        return status;
      }
    }
    for (const int operation : {kDispatch, kPair}) {
      // Once, so that nothing is captured that only a first call does.
      if (Status status = run(operation, 0); !status) return status;
      if (way_ == Way::stream) continue;
      Chains& chains = chains_[operation == kPair ? 1 : 0];
      Status status = make([&] { return queue(operation, kHeadOperations); }, chains.head);
      if (status) status = make([&] { return queue(operation, chain_); }, chains.body);
      if (!status) return status;
    }
    return {};
  }

  /// Microseconds of single pairs, as many as there is room for: what passed on the device's clock from
  /// the end of one to the end of the next. The clock is read by a kernel of its own between them.
  Status time_singles(Board& board, std::span<double> us) {
    const std::size_t count = static_cast<std::size_t>(chain_) + 1;
    const Result<std::byte*> memory = place_.take(count * sizeof(std::uint64_t));
    if (!memory) return memory.status();
    auto* const stamps = reinterpret_cast<std::uint64_t*>(*memory);
    const auto stamp = [&](int at) {
      return cuda_status(static_cast<cudaError_t>(launch_stamp(stamps + at, stream_)),
                         "a time stamp");
    };
    Graph graph;
    Status status = make(
        [&] {
          Status queued = stamp(0);
          for (int i = 0; queued && i < chain_; ++i) {
            queued = contestant_->run(kPair, i % sets_);
            if (queued) queued = stamp(i + 1);
          }
          return queued;
        },
        graph);
    std::vector<std::uint64_t> seen(count);
    for (std::size_t done = 0; status && done < us.size();) {
      if (const Result<std::int64_t> start = board.pass(); !start) return start.status();
      status = go(kPair, true);
      if (status) status = replay(stream_, graph);
      if (status) status = contestant_->settle();
      if (status) {
        status = place_.read(reinterpret_cast<std::byte*>(seen.data()), *memory,
                             count * sizeof(std::uint64_t));
      }
      for (std::size_t i = 1; i < count && done < us.size(); ++i) {
        us[done++] = static_cast<double>(seen[i] - seen[i - 1]) * 1e-3;
      }
    }
    return status;
  }

  /// Microseconds per operation.
  Result<double> time(int operation) {
    return time([&](bool head) { return go(operation, head); });
  }

  /// Microseconds per combine in graphs of combines alone, of `warmup` graphs and then of as many as there is room for.
  /// What the last one leaves is looked at.
  Status time_combines(Board& board, int warmup, std::span<double> us) {
    Status status = contestant_->dispatch_sets();
    Chains chains;
    for (auto [graph, count] :
         {std::pair(&chains.head, kHeadOperations), std::pair(&chains.body, chain_)}) {
      if (!status) return status;
      status = make(
          [&, count = count] {
            Status queued;
            for (int i = 0; queued && i < count; ++i)
              queued = contestant_->combine_alone(i % sets_);
            return queued;
          },
          *graph);
    }
    for (int sample = -warmup; status && sample < static_cast<int>(us.size()); ++sample) {
      if (const Result<std::int64_t> start = board.pass(); !start) return start.status();
      const Result<double> each =
          time([&](bool head) { return replay(stream_, head ? chains.head : chains.body); });
      if (!each) return each.status();
      if (sample >= 0) us[static_cast<std::size_t>(sample)] = *each;
    }
    if (!status) return status;
    const Result<std::int64_t> wrong = contestant_->check_combine((chain_ - 1) % sets_);
    if (!wrong) return wrong.status();
    if (*wrong == 0) return {};
    return {StatusCode::internal, fmt::format("combines alone: {} values are wrong", *wrong)};
  }

 private:
  struct Chains {
    Graph head, body;
  };

  template <typename Go>
  Result<double> time(const Go& go) {
    Status status = go(true);
    if (status) status = cuda_status(cudaEventRecord(begin_.get(), stream_), "an event");
    if (status) status = go(false);
    if (status) status = cuda_status(cudaEventRecord(end_.get(), stream_), "an event");
    if (status) status = contestant_->settle();
    if (!status) return status;
    const Result<double> us = microseconds_between(begin_, end_);
    return us ? Result<double>(*us / chain_) : us;
  }

  /// While no rank has operations under way: those of one process share what may wait for kernels and let nothing be launched
  /// meanwhile (docs/cuda-engine.md). Collective.
  Status make(const std::function<Status()>& queue, Graph& graph) {
    Status status = place_.finish();
    if (status) status = meet();
    if (status) status = capture(stream_, queue, graph);
    return status ? meet() : status;
  }
  Status meet() {
    const Result<std::int64_t> met = board_->pass();
    return met ? Status() : met.status();
  }

  Status queue(int operation, int count) {
    for (int i = 0; i < count; ++i) {
      if (Status status = contestant_->run(operation, i % sets_); !status) return status;
    }
    return {};
  }
  Status go(int operation, bool head) {
    if (way_ == Way::stream) return queue(operation, head ? kHeadOperations : chain_);
    const Chains& chains = chains_[operation == kPair ? 1 : 0];
    return replay(stream_, head ? chains.head : chains.body);
  }

  std::shared_ptr<QueuedContestant> contestant_;
  Place& place_;
  Board* board_ = nullptr;  // From prepare() on.
  cudaStream_t stream_;
  int sets_;
  int chain_;
  Way way_;
  std::array<Chains, 2> chains_;
  Event begin_, end_;
};

/// One sample of every operation. `sample` < 0: warm-up, nothing is kept.
Status sample_operations(Board& board, Launched& contestant, int series, int sample) {
  double dispatch_us = 0.0;
  for (const int operation : {kDispatch, kPair}) {
    if (const Result<std::int64_t> start = board.pass(); !start) return start.status();
    const Result<double> us = contestant.time(operation);
    if (!us) return Status(us.status().code(), contestant.name() + ": " + us.status().message());
    if (sample < 0) continue;
    const auto keep = [&](int which, double value) {
      board.samples(board.rank(), series + which)[static_cast<std::size_t>(sample)] = value;
    };
    keep(operation, *us);
    if (operation == kDispatch) dispatch_us = *us;
    if (operation == kPair) keep(kCombine, *us - dispatch_us);
  }
  return {};
}

}  // namespace

Contestants launched(std::shared_ptr<QueuedContestant> contestant, Place& place,
                     const Case& bench_case) {
  Contestants contestants;
  for (const Way way : {Way::graph, Way::stream}) {
    if (!(way == Way::graph ? bench_case.graphs : bench_case.plain_launches)) continue;
    contestants.push_back(std::make_unique<Launched>(contestant, place, bench_case, way));
  }
  return contestants;
}

Status measure_launched(Board& board, const Case& bench_case, const Contestants& contestants,
                        Progress& progress) {
  // The GEMM, the last one, has measure_gemm().
  const std::size_t count = contestants.size() - (bench_case.gemm ? 1 : 0);
  for (std::size_t which = 0; which < count; ++which) {
    if (const Result<std::int64_t> start = board.pass(); !start) return start.status();
    if (Status status = static_cast<Launched&>(*contestants[which]).prepare(board); !status) {
      return status;
    }
  }
  for (int iteration = -bench_case.warmup; iteration < bench_case.iterations; ++iteration) {
    progress.tick("measuring", iteration, bench_case.iterations);
    for (std::size_t turn = 0; turn < count; ++turn) {
      const std::size_t which = iteration % 2 == 0 ? turn : count - 1 - turn;
      if (Status status = sample_operations(board, static_cast<Launched&>(*contestants[which]),
                                            series_of(contestants, which), iteration);
          !status) {
        return status;
      }
    }
  }
  if (bench_case.singles > 0) {
    auto& contestant = static_cast<Launched&>(*contestants[singles_contestant(contestants)]);
    if (Status status = contestant.time_singles(board, board.singles(board.rank())); !status) {
      return status;
    }
  }
  if (bench_case.combines) {
    auto& contestant = static_cast<Launched&>(*contestants[singles_contestant(contestants)]);
    if (Status status = contestant.time_combines(
            board, bench_case.warmup, board.samples(board.rank(), combines_series(contestants)));
        !status) {
      return status;
    }
  }
  const Result<std::int64_t> done = board.pass();
  return done ? Status() : done.status();
}

}  // namespace sluice::bench
