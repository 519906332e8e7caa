// SPDX-License-Identifier: MIT
#include "gpu_stack.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "gpu.hpp"
#include "gpu_layer.hpp"
#include "gpu_weights.hpp"
#include "phase_timer.hpp"

namespace moe {
namespace {

using sluice::Status;
using sluice::StatusCode;

class GpuStack {
 public:
  GpuStack(const GpuOptions& options, Gpu& gpu, GpuLayer& layer)
      : options_(options), shape_(options.common.model), gpu_(gpu), layer_(layer), timer_(gpu) {
    result_.updates.resize(static_cast<std::size_t>(shape_.layers));
    result_.times.resize(static_cast<std::size_t>(shape_.layers));
    for (int i = 0; i < shape_.layers; ++i) {
      weights_.push_back(make_gpu_weights(gpu_, shape_, i, layer_.local_expert_ids()));
    }
  }

  /// One layer, kernel by kernel, whose result and times nobody wants: it loads the kernels, which
  /// is not for a capture to do, and takes the longer time that the first of everything takes. Then
  /// the graphs.
  const Status& warm_up(std::span<const std::int32_t> tokens, std::int64_t first_position) {
    put_tokens(tokens, first_position);
    layer_.queue(weights_.front(), timer_);
    if (!gpu_.finish() || !options_.graph) return gpu_.status();
    for (const GpuWeights& weights : weights_) {
      graphs_.emplace_back(gpu_, [&] { layer_.queue(weights, timer_); });
    }
    return gpu_.status();
  }

  const Status& step(std::span<const std::int32_t> tokens, std::int64_t first_position,
                     const std::function<void(int layer)>& progress) {
    put_tokens(tokens, first_position);
    for (std::size_t i = 0; i < weights_.size() && gpu_.status(); ++i) {
      progress(static_cast<int>(i));
      run_layer(i);
      gpu_.copy(layer_.x(), layer_.out(), layer_.bytes());
    }
    append(result_.final, read(layer_.x()));
    return gpu_.status();
  }

  RankResult take_result() { return std::move(result_); }

 private:
  void put_tokens(std::span<const std::int32_t> tokens, std::int64_t first_position) {
    const std::vector<Bf16> x = embed(shape_, tokens, first_position);
    gpu_.copy(layer_.x(), x.data(), layer_.bytes());
  }

  std::vector<Bf16> read(const Bf16* from) {
    std::vector<Bf16> values(layer_.bytes() / sizeof(Bf16));
    gpu_.copy(values.data(), from, layer_.bytes());
    return values;
  }

  static void append(std::vector<Bf16>& to, const std::vector<Bf16>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  /// A layer reads x and leaves it as it is, so it can be run again.
  void run_layer(std::size_t i) {
    std::vector<Bf16> by_rank;
    std::vector<Bf16> out;
    for (int repetition = 0; repetition < options_.common.repetitions; ++repetition) {
      if (options_.graph) {
        graphs_[i].launch();
      } else {
        layer_.queue(weights_[i], timer_);
      }
      if (!gpu_.finish()) return;
      layer_.check_reports();
      timer_.read(result_.times[i]);
      std::vector<Bf16> by_rank_now = read(layer_.by_rank());
      std::vector<Bf16> out_now = read(layer_.out());
      if (repetition > 0 && (by_rank_now != by_rank || out_now != out)) {
        gpu_.check(Status(StatusCode::internal, "the same layer gave other bits"), "repetition");
      }
      by_rank = std::move(by_rank_now);
      out = std::move(out_now);
    }
    append(result_.updates[i], by_rank);
  }

  const GpuOptions& options_;
  const ModelShape& shape_;
  Gpu& gpu_;
  GpuLayer& layer_;
  PhaseTimer timer_;
  std::vector<GpuWeights> weights_;
  std::deque<Graph> graphs_;  // Its elements stay where they are.
  RankResult result_;
};

}  // namespace

sluice::Result<RankResult> run_gpu_stack(sluice::World& world, const GpuOptions& options,
                                         int device, const std::vector<std::int32_t>& tokens,
                                         const StackProgress& progress) {
  const Slice mine = slice_of(options.common.tokens, world.size(), world.rank());
  const auto position_of = [&](int step) { return step * options.common.tokens + mine.begin; };
  const auto part_of = [&](int step) {
    return std::span(tokens).subspan(static_cast<std::size_t>(position_of(step)),
                                     static_cast<std::size_t>(mine.count));
  };
  // In this order, since the communicator waits for its stream when it goes.
  Gpu gpu(device);
  if (!gpu.status()) return gpu.status();
  auto layer = GpuLayer::create(world, options, gpu, mine.count);
  if (!layer) return layer.status();
  GpuStack stack(options, gpu, **layer);
  if (const Status& status = stack.warm_up(part_of(0), position_of(0)); !status) return status;
  for (int step = 0; step < options.common.steps; ++step) {
    const Status& status =
        stack.step(part_of(step), position_of(step), [&](int i) { progress(step, i); });
    if (!status) return status;
  }
  return stack.take_result();
}

}  // namespace moe
