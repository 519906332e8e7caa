// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/sluice.hpp>

#include "gpu.hpp"
#include "gpu_options.hpp"
#include "gpu_weights.hpp"
#include "kernels.hpp"
#include "phase_timer.hpp"

namespace moe {

/// A rank's MoE layer on its GPU: x + moe(rms_norm(x)). One object serves all layers of the stack,
/// which differ in their weights only.
class GpuLayer {
 public:
  /// Collective over the world. `tokens`: of this rank, the same in every call.
  static sluice::Result<std::unique_ptr<GpuLayer>> create(sluice::World& world,
                                                          const GpuOptions& options, Gpu& gpu,
                                                          int tokens);

  /// Numbers of this rank's experts.
  std::span<const std::int32_t> local_expert_ids() const noexcept;

  /// Puts one layer on the GPU's stream and returns, having waited for nothing; collective. What
  /// becomes of it is in gpu.finish() and check_reports().
  void queue(const GpuWeights& weights, PhaseTimer& timer);

  /// Whether every token of every operation that has ended went where it should.
  void check_reports();

  // GPU memory, [tokens, hidden].
  Bf16* x() const noexcept { return x_; }                    ///< What goes in.
  const Bf16* out() const noexcept { return out_; }          ///< What comes out.
  const Bf16* by_rank() const noexcept { return by_rank_; }  ///< The default reduction's result.
  std::size_t bytes() const noexcept;                        ///< Of each of them.

 private:
  GpuLayer(const GpuOptions& options, Gpu& gpu, int tokens, int rows_max,
           sluice::Communicator communicator);
  void allocate();
  void find_handle_arrays();

  void route(const Bf16* router);
  void plan_nothing(const sluice::Handle& handle);
  void meet() { plan_nothing(meeting_); }
  void dispatch(sluice::Layout layout);
  void run_experts(sluice::Layout layout, const GpuWeights::Experts& experts);
  void run_experts(const Groups& groups, const GpuWeights::Experts& experts, const Bf16* rows,
                   Bf16* out);
  void combine(sluice::Layout layout, sluice::Reduce reduce, Bf16* out);

  sluice::TensorView tensor(const void* data, sluice::DType dtype, std::int64_t rows,
                            std::int64_t columns) const;
  sluice::TensorView rows_of(Bf16* data, sluice::Layout layout) const;

  const ModelShape& shape_;
  Gpu& gpu_;
  const sluice::Layout layout_;
  const int tokens_;    // of this rank
  const int rows_max_;  // R * M: rows that one expert can get, and records that this rank can get
  sluice::Communicator communicator_;

  // [tokens, hidden]
  Bf16* x_ = nullptr;
  Bf16* h_ = nullptr;
  Bf16* shared_ = nullptr;
  Bf16* by_rank_ = nullptr;
  Bf16* single_ = nullptr;
  Bf16* out_ = nullptr;
  float* logits_ = nullptr;      // [tokens, experts]
  std::int32_t* ids_ = nullptr;  // [tokens, top_k]
  float* weights_ = nullptr;
  // As dispatch lays rows out, with room for every layout.
  Bf16* rows_ = nullptr;
  Bf16* y_ = nullptr;
  float* wide_ = nullptr;  // an expert's inner layer, before and after the activation
  Bf16* inner_ = nullptr;
  // rank_major: the records, expert by expert, and where each of their routes is there.
  Bf16* sorted_ = nullptr;
  std::int32_t* slots_ = nullptr;
  std::int32_t* taken_ = nullptr;

  sluice::Handle handle_;
  sluice::Handle meeting_;  // of operations that move nothing
  // The handle's own arrays.
  Groups groups_;
  Records records_;
};

}  // namespace moe
