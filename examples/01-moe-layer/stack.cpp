// SPDX-License-Identifier: MIT
#include "stack.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace moe {
namespace {

using sluice::ConstTensorView;
using sluice::DType;
using sluice::Status;
using sluice::StatusCode;
using sluice::TensorView;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// A rank's part of one layer: the router and the shared expert, which every rank has, and the
/// experts that this rank owns.
struct LayerWeights {
  std::vector<Bf16> router;
  Expert shared;
  std::vector<Expert> experts;
};

/// Both results of one layer's combines: the order of sums that does not depend on the ranks, and
/// the default one.
struct Updates {
  std::vector<Bf16> single;
  std::vector<Bf16> by_rank;
};

class Stack {
 public:
  Stack(sluice::World& world, const Options& options, sluice::MoeLayer moe)
      : world_(world), options_(options), shape_(options.model), moe_(std::move(moe)) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      LayerWeights weights;
      weights.router = make_router(shape_, layer);
      weights.shared = make_expert(shape_, layer, shared_expert(shape_));
      for (const std::int32_t expert : moe_.communicator().local_expert_ids()) {
        weights.experts.push_back(make_expert(shape_, layer, expert));
      }
      layers_.push_back(std::move(weights));
    }
    result_.updates.resize(layers_.size());
    result_.times.resize(layers_.size());
  }

  Status step(std::span<const std::int32_t> tokens, std::int64_t first_position,
              const std::function<void(int layer)>& progress) {
    std::vector<Bf16> x = embed(shape_, tokens, first_position);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      progress(static_cast<int>(layer));
      Updates updates;
      if (Status status = run_layer(layer, x, updates); !status) return status;
      // The stack goes on with the result that every number of ranks agrees on; the default one is
      // kept, to be compared with what one process computes from the same x.
      add_residual(x, updates.single);
      std::vector<Bf16>& kept = result_.updates[layer];
      kept.insert(kept.end(), updates.by_rank.begin(), updates.by_rank.end());
    }
    result_.final.insert(result_.final.end(), x.begin(), x.end());
    return Status();
  }

  RankResult take_result() { return std::move(result_); }

 private:
  Status run_layer(std::size_t layer, std::span<const Bf16> x, Updates& updates) {
    const LayerWeights& weights = layers_[layer];
    const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / shape_.hidden;
    const std::vector<Bf16> h = rms_norm(shape_, x);
    const Routing routing = route(shape_, weights.router, h);
    std::vector<Bf16> shared(h.size());
    run_expert(shape_, weights.shared, h.data(), shared.data(), static_cast<int>(tokens));

    const ConstTensorView h_view(h.data(), DType::bf16, tokens, shape_.hidden);
    const ConstTensorView ids(routing.ids.data(), DType::i32, tokens, shape_.top_k);
    const ConstTensorView route_weights(routing.weights.data(), DType::f32, tokens, shape_.top_k);
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      if (Status status = world_.barrier(); !status) return status;
      const Clock::time_point start = Clock::now();
      const sluice::Received& received = moe_.dispatch(h_view, ids, route_weights);
      result_.times[layer].dispatch.push_back(microseconds_since(start));
      if (Status status = check("dispatch", received.status, received.report); !status) {
        return status;
      }
    }

    const Clock::time_point start = Clock::now();
    run_experts(weights);
    result_.times[layer].experts.push_back(microseconds_since(start));

    const ConstTensorView shared_view(shared.data(), DType::bf16, tokens, shape_.hidden);
    if (Status status = combine(sluice::Reduce::rank, shared_view, updates.by_rank,
                                result_.times[layer].combine);
        !status) {
      return status;
    }
    return combine(sluice::Reduce::single, shared_view, updates.single,
                   result_.times[layer].combine_single);
  }

  /// y = expert(row) for every row that dispatch brought, expert by expert.
  void run_experts(const LayerWeights& weights) {
    const sluice::Received& received = moe_.received();
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const auto* rows = static_cast<const Bf16*>(received.rows.data);
    const auto* counts = static_cast<const std::int32_t*>(received.handle.counts().data);
    const auto* offsets = static_cast<const std::int64_t*>(received.handle.offsets().data);
    y_.resize(static_cast<std::size_t>(received.handle.rows()) * hidden);
    for (std::size_t expert = 0; expert < weights.experts.size(); ++expert) {
      const std::size_t first = static_cast<std::size_t>(offsets[expert]) * hidden;
      run_expert(shape_, weights.experts[expert], rows + first, y_.data() + first, counts[expert]);
    }
    y_view_ = received.rows;
    y_view_.data = y_.data();
  }

  Status combine(sluice::Reduce reduce, ConstTensorView shared, std::vector<Bf16>& out,
                 std::vector<double>& times) {
    sluice::CombineOptions options;
    options.reduce = reduce;
    sluice::CombineOutputs outputs;
    outputs.shared_results = {shared};
    out.resize(static_cast<std::size_t>(shared.shape[0] * shared.shape[1]));
    std::vector<Bf16> again(out.size());
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      std::vector<Bf16>& target = repetition == 0 ? out : again;
      const TensorView view(target.data(), DType::bf16, shared.shape[0], shared.shape[1]);
      if (Status status = world_.barrier(); !status) return status;
      const Clock::time_point start = Clock::now();
      const sluice::CombineResult result = moe_.combine(y_view_, view, options, outputs);
      times.push_back(microseconds_since(start));
      if (Status status = check("combine", result.status, result.report); !status) return status;
      if (repetition > 0 && again != out) {
        return Status(StatusCode::internal, "a combine with the same arguments gave other bits");
      }
    }
    return Status();
  }

  /// A report speaks even where a status is ok: this job wants no loss of any kind.
  static Status check(const char* operation, const Status& status, const sluice::Report& report) {
    if (!status) return Status(status.code(), std::string(operation) + ": " + status.message());
    if (report.lost_routes == 0 && report.bad_routes == 0 && report.overflow_rows == 0 &&
        report.missing.empty() && report.refused.empty() && report.mismatched.empty()) {
      return Status();
    }
    return Status(StatusCode::unavailable,
                  std::string(operation) + ": expected nothing lost, seen " +
                      std::to_string(report.lost_routes) + " lost routes, " +
                      std::to_string(report.bad_routes) + " bad routes, " +
                      std::to_string(report.overflow_rows) + " overflown rows");
  }

  sluice::World& world_;
  const Options& options_;
  const ModelShape& shape_;
  sluice::MoeLayer moe_;
  std::vector<LayerWeights> layers_;
  std::vector<Bf16> y_;
  ConstTensorView y_view_;
  RankResult result_;
};

sluice::Result<sluice::MoeLayer> create_layer(sluice::World& world, const Options& options) {
  sluice::Shape shape;
  shape.experts = options.model.experts;
  shape.top_k = options.model.top_k;
  shape.hidden = options.model.hidden;
  shape.max_tokens = (options.tokens + world.size() - 1) / world.size();
  sluice::CommunicatorOptions communicator;
  communicator.permit_single = true;
  if (options.mode == "latency") communicator.mode = sluice::Mode::latency;
  if (options.mode == "throughput") communicator.mode = sluice::Mode::throughput;
  if (options.layout == "expert_slab") communicator.layout = sluice::Layout::expert_slab;
  return sluice::MoeLayer::create(world, shape, communicator);
}

}  // namespace

Slice slice_of(int tokens, int ranks, int rank) noexcept {
  // The first (tokens mod ranks) ranks hold one more.
  const int each = tokens / ranks;
  const int more = tokens % ranks;
  return {rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
}

sluice::Result<RankResult> run_stack(sluice::World& world, const Options& options,
                                     const std::vector<std::int32_t>& tokens,
                                     const StackProgress& progress) {
  sluice::Result<sluice::MoeLayer> moe = create_layer(world, options);
  if (!moe) return moe.status();
  Stack stack(world, options, std::move(moe).value());
  const Slice mine = slice_of(options.tokens, world.size(), world.rank());
  for (int step = 0; step < options.steps; ++step) {
    const int first = step * options.tokens + mine.begin;
    const auto part = std::span(tokens).subspan(static_cast<std::size_t>(first),
                                                static_cast<std::size_t>(mine.count));
    const Status status =
        stack.step(part, first, [&progress, step](int layer) { progress(step, layer); });
    if (!status) return status;
  }
  return stack.take_result();
}

}  // namespace moe
