// SPDX-License-Identifier: MIT
#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "matmul.hpp"
#include "random.hpp"

namespace moe {
namespace {

enum class Part : std::uint64_t { embedding, position, router, gate_up, down };

std::uint64_t key_of(const ModelShape& shape, Part part, int layer, std::int64_t index) {
  std::uint64_t key = mix(shape.seed);
  key = mix(key ^ static_cast<std::uint64_t>(part));
  key = mix(key ^ static_cast<std::uint64_t>(layer));
  return mix(key ^ static_cast<std::uint64_t>(index));
}

/// Uniform numbers of this limit have the variance 1 / fan_in.
float limit_of(int fan_in) {
  return std::sqrt(3.0F / static_cast<float>(fan_in));
}

std::size_t area(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

/// e^x by a polynomial of our own: a mathematics library may differ from machine to machine, and so
/// would the routing.
float exponential(float x) {
  x = std::clamp(x, -87.0F, 87.0F);
  const float whole = std::nearbyint(x * 1.44269504F);
  const float rest = x - whole * 0.693147182F;
  float sum = 1.0F;
  for (int n = 7; n >= 1; --n) sum = 1.0F + sum * (rest / static_cast<float>(n));
  return std::ldexp(sum, static_cast<int>(whole));
}

float silu(float x) {
  return x / (1.0F + exponential(-x));
}

}  // namespace

Expert make_expert(const ModelShape& shape, int layer, int expert) {
  Expert made;
  made.gate_up.resize(area(shape.hidden, 2 * shape.width));
  made.down.resize(area(shape.width, shape.hidden));
  fill_uniform(key_of(shape, Part::gate_up, layer, expert), limit_of(shape.hidden), made.gate_up);
  fill_uniform(key_of(shape, Part::down, layer, expert), limit_of(shape.width), made.down);
  return made;
}

std::vector<Bf16> make_router(const ModelShape& shape, int layer) {
  std::vector<Bf16> router(area(shape.hidden, shape.experts));
  fill_uniform(key_of(shape, Part::router, layer, 0), limit_of(shape.hidden), router);
  return router;
}

std::vector<Bf16> embed(const ModelShape& shape, std::span<const std::int32_t> tokens,
                        std::int64_t first_position) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  std::vector<Bf16> x(tokens.size() * hidden);
  std::vector<Bf16> position(hidden);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto number = first_position + static_cast<std::int64_t>(t);
    const std::span<Bf16> row = std::span(x).subspan(t * hidden, hidden);
    fill_uniform(key_of(shape, Part::embedding, 0, tokens[t]), 1.0F, row);
    fill_uniform(key_of(shape, Part::position, 0, number), 0.5F, position);
    add_residual(row, position);
  }
  return x;
}

std::vector<Bf16> rms_norm(const ModelShape& shape, std::span<const Bf16> x) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  std::vector<Bf16> h(x.size());
  for (std::size_t row = 0; row < x.size(); row += hidden) {
    float squares = 0.0F;
    for (std::size_t i = 0; i < hidden; ++i) {
      const float value = to_float(x[row + i]);
      squares += value * value;
    }
    const float scale = 1.0F / std::sqrt(squares / static_cast<float>(hidden) + 1e-6F);
    for (std::size_t i = 0; i < hidden; ++i) h[row + i] = to_bf16(to_float(x[row + i]) * scale);
  }
  return h;
}

Routing route(const ModelShape& shape, std::span<const Bf16> router, std::span<const Bf16> h) {
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  const std::size_t tokens = h.size() / static_cast<std::size_t>(shape.hidden);
  std::vector<float> logits(tokens * experts);
  matmul(h.data(), router.data(), logits.data(), static_cast<int>(tokens), shape.hidden,
         shape.experts);

  Routing routing;
  std::vector<std::int32_t> order(experts);
  std::vector<float> weight(top_k);
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* row = logits.data() + t * experts;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + shape.top_k, order.end(),
                      [row](std::int32_t a, std::int32_t b) {
                        return row[a] != row[b] ? row[a] > row[b] : a < b;
                      });
    // The softmax's own sum cancels out when the chosen probabilities are normalised.
    float sum = 0.0F;
    for (std::size_t k = 0; k < top_k; ++k) {
      weight[k] = exponential(row[order[k]] - row[order[0]]);
      sum += weight[k];
    }
    for (std::size_t k = 0; k < top_k; ++k) {
      routing.ids.push_back(order[k]);
      routing.weights.push_back(weight[k] / sum);
    }
  }
  return routing;
}

void run_expert(const ModelShape& shape, const Expert& expert, const Bf16* rows, Bf16* out, int n) {
  const auto width = static_cast<std::size_t>(shape.width);
  thread_local std::vector<float> wide;
  thread_local std::vector<Bf16> inner;
  wide.resize(area(n, std::max(2 * shape.width, shape.hidden)));
  inner.resize(area(n, shape.width));
  matmul(rows, expert.gate_up.data(), wide.data(), n, shape.hidden, 2 * shape.width);
  for (std::size_t row = 0; row < static_cast<std::size_t>(n); ++row) {
    const float* gate = wide.data() + row * 2 * width;
    const float* up = gate + width;
    for (std::size_t i = 0; i < width; ++i) inner[row * width + i] = to_bf16(silu(gate[i]) * up[i]);
  }
  matmul(inner.data(), expert.down.data(), wide.data(), n, shape.width, shape.hidden);
  for (std::size_t i = 0; i < area(n, shape.hidden); ++i) out[i] = to_bf16(wide[i]);
}

void add_residual(std::span<Bf16> x, std::span<const Bf16> update) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(to_float(x[i]) + to_float(update[i]));
}

std::uint64_t hash_of(std::span<const Bf16> values) noexcept {
  std::uint64_t hash = mix(values.size());
  for (const Bf16 value : values) hash = mix(hash ^ value);
  return hash;
}

}  // namespace moe
