// SPDX-License-Identifier: MIT
#include "reference.hpp"

#include <algorithm>
#include <cmath>

#include "parallel.hpp"

namespace moe {
namespace {

/// y [tokens * top_k, hidden]: the result of every route. Experts are made, used and dropped one by
/// one, so that the whole model is never in memory.
std::vector<Bf16> run_routes(const ModelShape& shape, int layer, const std::vector<Bf16>& h,
                             const Routing& routing, int threads) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  std::vector<Bf16> y(routing.ids.size() * hidden);
  parallel_for(threads, shape.experts, [&](int number) {
    std::vector<std::size_t> routes;
    for (std::size_t route = 0; route < routing.ids.size(); ++route) {
      if (routing.ids[route] == number) routes.push_back(route);
    }
    if (routes.empty()) return;
    std::vector<Bf16> rows(routes.size() * hidden);
    for (std::size_t i = 0; i < routes.size(); ++i) {
      std::copy_n(h.data() + routes[i] / top_k * hidden, hidden, rows.data() + i * hidden);
    }
    const Expert expert = make_expert(shape, layer, number);
    run_expert(shape, expert, rows.data(), rows.data(), static_cast<int>(routes.size()));
    for (std::size_t i = 0; i < routes.size(); ++i) {
      std::copy_n(rows.data() + i * hidden, hidden, y.data() + routes[i] * hidden);
    }
  });
  return y;
}

}  // namespace

Reference run_reference(const ModelShape& shape, const std::vector<std::int32_t>& tokens,
                        int threads, const std::function<void(int layer)>& progress) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  Reference reference;
  std::vector<Bf16> x = embed(shape, tokens, 0);
  for (int layer = 0; layer < shape.layers; ++layer) {
    progress(layer);
    const std::vector<Bf16> h = rms_norm(shape, x);
    const Routing routing = route(shape, make_router(shape, layer), h);
    const std::vector<Bf16> y = run_routes(shape, layer, h, routing, threads);
    std::vector<Bf16> shared(h.size());
    run_expert(shape, make_expert(shape, layer, shared_expert(shape)), h.data(), shared.data(),
               static_cast<int>(tokens.size()));

    // What Sluice documents for reduce = single: one fma chain over k from +0, then the shared
    // result, then one rounding.
    std::vector<Bf16> update(h.size());
    std::vector<float> magnitude(h.size());
    parallel_for(threads, static_cast<int>(tokens.size()), [&](int token) {
      const auto t = static_cast<std::size_t>(token);
      for (std::size_t i = 0; i < hidden; ++i) {
        float sum = 0.0F;
        float absolute = 0.0F;
        for (std::size_t k = 0; k < top_k; ++k) {
          const float weight = routing.weights[t * top_k + k];
          const float value = to_float(y[(t * top_k + k) * hidden + i]);
          sum = std::fma(weight, value, sum);
          absolute += std::fabs(weight * value);
        }
        update[t * hidden + i] = to_bf16(sum + to_float(shared[t * hidden + i]));
        magnitude[t * hidden + i] = absolute;
      }
    });
    add_residual(x, update);
    reference.updates.push_back(std::move(update));
    reference.magnitude.push_back(std::move(magnitude));
  }
  reference.final = std::move(x);
  return reference;
}

}  // namespace moe
