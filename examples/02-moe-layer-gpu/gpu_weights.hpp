// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "gpu.hpp"
#include "model.hpp"

namespace moe {

/// A rank's part of one layer, in GPU memory: the router and the shared expert, which every rank
/// has, and the experts that this rank owns, one after another.
struct GpuWeights {
  struct Experts {
    const Bf16* gate_up = nullptr;
    const Bf16* down = nullptr;
  };
  const Bf16* router = nullptr;
  Experts shared;
  Experts own;
};

/// Makes the weights of a layer, with those of the experts of these numbers, and brings them to the
/// GPU.
GpuWeights make_gpu_weights(Gpu& gpu, const ModelShape& shape, int layer,
                            std::span<const std::int32_t> experts);

}  // namespace moe
