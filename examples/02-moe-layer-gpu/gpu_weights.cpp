// SPDX-License-Identifier: MIT
#include "gpu_weights.hpp"

#include <vector>

namespace moe {
namespace {

void append(std::vector<Bf16>& to, const std::vector<Bf16>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

GpuWeights make_gpu_weights(Gpu& gpu, const ModelShape& shape, int layer,
                            std::span<const std::int32_t> experts) {
  GpuWeights weights;
  weights.router = gpu.upload(make_router(shape, layer));
  const Expert shared = make_expert(shape, layer, shared_expert(shape));
  weights.shared = {gpu.upload(shared.gate_up), gpu.upload(shared.down)};
  Expert own;
  for (const std::int32_t number : experts) {
    const Expert expert = make_expert(shape, layer, number);
    append(own.gate_up, expert.gate_up);
    append(own.down, expert.down);
  }
  weights.own = {gpu.upload(own.gate_up), gpu.upload(own.down)};
  return weights;
}

}  // namespace moe
