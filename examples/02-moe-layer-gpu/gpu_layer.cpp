// SPDX-License-Identifier: MIT
#include "gpu_layer.hpp"

#include <algorithm>
#include <utility>

namespace moe {
namespace {

using sluice::DType;
using sluice::Layout;
using sluice::Reduce;
using sluice::Status;
using sluice::StatusCode;
using sluice::TensorView;

Layout layout_named(const std::string& name) {
  if (name == "rank_major") return Layout::rank_major;
  return name == "expert_major" ? Layout::expert_major : Layout::expert_slab;
}

sluice::Mode mode_named(const std::string& name) {
  if (name == "throughput") return sluice::Mode::throughput;
  return name == "latency" ? sluice::Mode::latency : sluice::Mode::automatic;
}

std::size_t area(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

bool clean(const sluice::Report& report) {
  return report.lost_routes == 0 && report.bad_routes == 0 && report.overflow_rows == 0 &&
         report.missing.empty() && report.refused.empty() && report.mismatched.empty();
}

}  // namespace

sluice::Result<std::unique_ptr<GpuLayer>> GpuLayer::create(sluice::World& world,
                                                           const GpuOptions& options, Gpu& gpu,
                                                           int tokens) {
  const ModelShape& model = options.common.model;
  sluice::Shape shape;
  shape.experts = model.experts;
  shape.top_k = model.top_k;
  shape.hidden = model.hidden;
  shape.max_tokens = (options.common.tokens + world.size() - 1) / world.size();
  sluice::CommunicatorOptions communicator;
  communicator.device = sluice::Device::cuda;
  communicator.device_index = gpu.device();
  communicator.mode = mode_named(options.common.mode);
  communicator.permit_single = true;
  // No block_limit: everything is on one stream, so that no other kernel of this rank wants a part
  // of the GPU while Sluice's are on it. Ranks that share a GPU divide it by themselves.
  auto created = sluice::Communicator::create(world, shape, communicator);
  if (!created) return created.status();
  std::unique_ptr<GpuLayer> layer(new GpuLayer(
      options, gpu, tokens, world.size() * shape.max_tokens, std::move(created).value()));
  layer->allocate();
  layer->find_handle_arrays();
  if (!gpu.status()) return gpu.status();
  return layer;
}

GpuLayer::GpuLayer(const GpuOptions& options, Gpu& gpu, int tokens, int rows_max,
                   sluice::Communicator communicator)
    : shape_(options.common.model),
      gpu_(gpu),
      layout_(layout_named(options.layout)),
      tokens_(tokens),
      rows_max_(rows_max),
      communicator_(std::move(communicator)) {}

std::span<const std::int32_t> GpuLayer::local_expert_ids() const noexcept {
  return communicator_.local_expert_ids();
}

std::size_t GpuLayer::bytes() const noexcept {
  return area(tokens_, shape_.hidden) * sizeof(Bf16);
}

void GpuLayer::allocate() {
  for (Bf16** const memory : {&x_, &h_, &shared_, &by_rank_, &single_, &out_}) {
    *memory = gpu_.allocate<Bf16>(area(tokens_, shape_.hidden));
  }
  logits_ = gpu_.allocate<float>(area(tokens_, shape_.experts));
  ids_ = gpu_.allocate<std::int32_t>(area(tokens_, shape_.top_k));
  weights_ = gpu_.allocate<float>(area(tokens_, shape_.top_k));

  // The slab is the largest layout: a place for every row that any expert can get.
  const int experts = communicator_.local_experts();
  const std::int64_t rows = std::int64_t{std::max(experts, 1)} * rows_max_;
  rows_ = gpu_.allocate<Bf16>(area(rows, shape_.hidden));
  y_ = gpu_.allocate<Bf16>(area(rows, shape_.hidden));
  wide_ = gpu_.allocate<float>(area(rows, 2 * shape_.width));
  inner_ = gpu_.allocate<Bf16>(area(rows, shape_.width));
  if (layout_ == Layout::rank_major) {
    sorted_ = gpu_.allocate<Bf16>(area(rows, shape_.hidden));
    slots_ = gpu_.allocate<std::int32_t>(area(rows_max_, shape_.top_k));
    taken_ = gpu_.allocate<std::int32_t>(static_cast<std::size_t>(experts));
  }
  const std::size_t bytes = communicator_.handle_bytes();
  handle_ = {gpu_.allocate<std::byte>(bytes), bytes, sluice::Device::cuda};
  meeting_ = {gpu_.allocate<std::byte>(bytes), bytes, sluice::Device::cuda};
}

/// A handle says where its arrays are once a dispatch has filled it, and where they are never
/// changes after that: it depends on the communicator's shape only. So one plan of no tokens is
/// enough to give kernels, and graphs, their addresses for good. What is in the arrays is read on
/// the GPU.
void GpuLayer::find_handle_arrays() {
  plan_nothing(handle_);
  if (!gpu_.finish()) return;
  if (!handle_.valid()) {
    gpu_.check(Status(StatusCode::internal, "expected a filled handle"), "plan");
    return;
  }
  groups_.counts = static_cast<const std::int32_t*>(handle_.counts().data);
  groups_.offsets = static_cast<const std::int64_t*>(handle_.offsets().data);
  groups_.groups = communicator_.local_experts();
  groups_.rows_max = rows_max_;
  // The last of the sources' offsets is the number of records.
  records_.count =
      static_cast<const std::int64_t*>(handle_.source_offsets().data) + communicator_.size();
  records_.local_ids = static_cast<const std::int32_t*>(handle_.local_ids().data);
  records_.local_weights = static_cast<const float*>(handle_.local_weights().data);
  records_.most = rows_max_;
  records_.top_k = shape_.top_k;
  records_.hidden = shape_.hidden;
}

void GpuLayer::queue(const GpuWeights& weights, PhaseTimer& timer) {
  gpu_.check(rms_norm(x_, h_, tokens_, shape_.hidden, gpu_.stream()), "rms_norm");
  route(weights.router);
  Groups all_tokens;
  all_tokens.rows_max = tokens_;
  run_experts(all_tokens, weights.shared, h_, shared_);

  meet();
  timer.time(Phase::dispatch, [&] { dispatch(layout_); });
  timer.time(Phase::experts, [&] { run_experts(layout_, weights.own); });
  meet();
  timer.time(Phase::combine, [&] { combine(layout_, Reduce::rank, by_rank_); });

  // The stack goes on with the sum that does not depend on the number of ranks. It needs the result
  // of each expert by itself, and in rank_major there is none: then the tokens travel once more.
  Layout layout = layout_;
  if (layout == Layout::rank_major) {
    layout = Layout::expert_slab;
    dispatch(layout);
    run_experts(layout, weights.own);
  }
  meet();
  timer.time(Phase::combine_single, [&] { combine(layout, Reduce::single, single_); });
  gpu_.check(add(x_, single_, out_, area(tokens_, shape_.hidden), gpu_.stream()), "the residual");
}

void GpuLayer::route(const Bf16* router) {
  Groups all_tokens;
  all_tokens.rows_max = tokens_;
  gpu_.check(matmul(all_tokens, h_, router, logits_, shape_.hidden, shape_.experts, gpu_.stream()),
             "the router");
  gpu_.check(
      choose_experts(logits_, ids_, weights_, tokens_, shape_.experts, shape_.top_k, gpu_.stream()),
      "choosing experts");
}

/// A plan of no tokens ends on no rank before it has begun on all. Between the phases of a layer it
/// is what the barrier is in example 01: all begin together. It is there for the times only.
void GpuLayer::plan_nothing(const sluice::Handle& handle) {
  sluice::DispatchOptions options;
  options.layout = Layout::expert_slab;
  options.stream = gpu_.stream();
  sluice::DispatchOutputs outputs;
  outputs.handle = handle;
  const TensorView no_ids = tensor(ids_, DType::i32, 0, shape_.top_k);
  gpu_.check(communicator_.plan(no_ids, {}, options, outputs).status, "plan");
}

void GpuLayer::dispatch(Layout layout) {
  sluice::DispatchOptions options;
  options.layout = layout;
  options.stream = gpu_.stream();
  sluice::DispatchOutputs outputs;
  outputs.rows = rows_of(rows_, layout);
  outputs.handle = handle_;
  const TensorView h = tensor(h_, DType::bf16, tokens_, shape_.hidden);
  const TensorView ids = tensor(ids_, DType::i32, tokens_, shape_.top_k);
  const TensorView weights = tensor(weights_, DType::f32, tokens_, shape_.top_k);
  gpu_.check(communicator_.dispatch(h, ids, weights, options, outputs).status, "dispatch");
}

void GpuLayer::run_experts(Layout layout, const GpuWeights::Experts& experts) {
  if (layout != Layout::rank_major) {
    run_experts(groups_, experts, rows_, y_);
    return;
  }
  gpu_.check(sort_by_expert(records_, groups_, rows_, sorted_, slots_, taken_, gpu_.stream()),
             "sorting records");
  run_experts(groups_, experts, sorted_, sorted_);
  gpu_.check(sum_by_record(records_, sorted_, slots_, y_, gpu_.stream()), "summing records");
}

void GpuLayer::run_experts(const Groups& groups, const GpuWeights::Experts& experts,
                           const Bf16* rows, Bf16* out) {
  gpu_.check(
      matmul(groups, rows, experts.gate_up, wide_, shape_.hidden, 2 * shape_.width, gpu_.stream()),
      "an expert's first product");
  gpu_.check(activate(groups, wide_, inner_, shape_.width, gpu_.stream()), "the activation");
  gpu_.check(matmul(groups, inner_, experts.down, out, shape_.width, shape_.hidden, gpu_.stream()),
             "an expert's second product");
}

void GpuLayer::combine(Layout layout, Reduce reduce, Bf16* out) {
  sluice::CombineOptions options;
  options.reduce = reduce;
  options.stream = gpu_.stream();
  sluice::CombineOutputs outputs;
  outputs.shared_results = {tensor(shared_, DType::bf16, tokens_, shape_.hidden)};
  const TensorView view = tensor(out, DType::bf16, tokens_, shape_.hidden);
  gpu_.check(communicator_.combine(rows_of(y_, layout), handle_, view, options, outputs).status,
             "combine");
}

TensorView GpuLayer::tensor(const void* data, DType dtype, std::int64_t rows,
                            std::int64_t columns) const {
  TensorView view(const_cast<void*>(data), dtype, rows, columns);
  view.device = sluice::Device::cuda;
  view.device_index = gpu_.device();
  return view;
}

/// With room for the most rows there can be, so that the host need not know how many come.
TensorView GpuLayer::rows_of(Bf16* data, Layout layout) const {
  const int experts = communicator_.local_experts();
  if (layout != Layout::expert_slab) {
    const int each = layout == Layout::rank_major ? 1 : std::min(shape_.top_k, experts);
    return tensor(data, DType::bf16, std::int64_t{each} * rows_max_, shape_.hidden);
  }
  TensorView view(data, DType::bf16, experts, rows_max_, shape_.hidden);
  view.device = sluice::Device::cuda;
  view.device_index = gpu_.device();
  return view;
}

void GpuLayer::check_reports() {
  const sluice::Statistics statistics = communicator_.statistics();
  if (clean(statistics.dispatch_reports) && clean(statistics.combine_reports)) return;
  gpu_.check(Status(StatusCode::unavailable,
                    "expected every token to arrive; seen " +
                        std::to_string(statistics.combine_reports.lost_routes) + " lost routes, " +
                        std::to_string(statistics.dispatch_reports.bad_routes) + " bad routes, " +
                        std::to_string(statistics.dispatch_reports.overflow_rows) +
                        " overflown rows, or ranks that did not answer"),
             "Sluice's reports");
}

}  // namespace moe
