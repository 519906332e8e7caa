// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bf16.hpp"

namespace moe {

/// A stack of MoE layers: x = x + moe(rms_norm(x)), without the attention between them, which would
/// not go through Sluice.
struct ModelShape {
  int layers = 4;
  int hidden = 2048;
  int experts = 64;
  int width = 256;  ///< Of an expert's inner layer.
  int top_k = 6;
  int vocabulary = 1 << 15;
  std::uint64_t seed = 1;
};

/// down(silu(gate(x)) * up(x)); gate and up lie beside each other.
struct Expert {
  std::vector<Bf16> gate_up;  // [hidden, 2 * width]
  std::vector<Bf16> down;     // [width, hidden]
};

/// Where a router sends tokens.
struct Routing {
  std::vector<std::int32_t> ids;  // [tokens, top_k]
  std::vector<float> weights;     // [tokens, top_k], of each token summing to 1
};

/// The number of the shared expert, which every token takes besides its top-k.
inline int shared_expert(const ModelShape& shape) noexcept {
  return shape.experts;
}

/// Weights are made of the seed, so that any process can make just those that it needs.
Expert make_expert(const ModelShape& shape, int layer, int expert);
std::vector<Bf16> make_router(const ModelShape& shape, int layer);  // [hidden, experts]

/// x [tokens, hidden]: a token's embedding plus its position's.
std::vector<Bf16> embed(const ModelShape& shape, std::span<const std::int32_t> tokens,
                        std::int64_t first_position);
/// h = x / sqrt(mean(x^2) + epsilon), row by row.
std::vector<Bf16> rms_norm(const ModelShape& shape, std::span<const Bf16> x);
/// Softmax over the router's logits, the top_k largest (on a tie the lower expert), normalised.
Routing route(const ModelShape& shape, std::span<const Bf16> router, std::span<const Bf16> h);
/// out = expert(rows), both [n, hidden]. They may be the same memory.
void run_expert(const ModelShape& shape, const Expert& expert, const Bf16* rows, Bf16* out, int n);
/// x = x + update.
void add_residual(std::span<Bf16> x, std::span<const Bf16> update);

/// A hash of activations in order: equal bits, equal hash.
std::uint64_t hash_of(std::span<const Bf16> values) noexcept;

}  // namespace moe
