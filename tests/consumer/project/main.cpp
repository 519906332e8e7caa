// SPDX-License-Identifier: MIT
//
// A stranger's program: two ranks as threads, experts that double their input, and a check of what
// comes home.
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.hpp>

namespace {

constexpr int kTokens = 3;
constexpr int kHidden = 16;

bool run_rank(sluice::World& world) {
  auto layer = sluice::MoeLayer::create(
      world, {.experts = 4, .top_k = 2, .hidden = kHidden, .max_tokens = kTokens});
  if (!layer) {
    std::printf("create: %s\n", layer.status().to_string().c_str());
    return false;
  }
  std::vector<float> x(kTokens * kHidden);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const std::vector<std::int64_t> ids = {0, 3, 2, 1, 3, -1};
  const std::vector<float> weights = {0.25F, 0.75F, 0.5F, 0.5F, 1.0F, 0.0F};
  const auto& received = layer->dispatch({x.data(), sluice::DType::f32, kTokens, kHidden},
                                         {ids.data(), sluice::DType::i64, kTokens, 2},
                                         {weights.data(), sluice::DType::f32, kTokens, 2});
  if (!received) {
    std::printf("dispatch: %s\n", received.status.to_string().c_str());
    return false;
  }
  // Small whole numbers are exact in bf16, which is what rows are by default.
  const auto* rows = static_cast<const std::uint16_t*>(received.rows.data);
  std::vector<float> y(static_cast<std::size_t>(received.handle.rows()) * kHidden);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(rows[i]) << 16;
    float value = 0.0F;
    static_assert(sizeof(value) == sizeof(bits));
    __builtin_memcpy(&value, &bits, sizeof(value));
    y[i] = 2.0F * value;
  }
  std::vector<float> out(x.size(), -1.0F);
  const auto combined =
      layer->combine({y.data(), sluice::DType::f32, received.handle.rows(), kHidden},
                     {out.data(), sluice::DType::f32, kTokens, kHidden});
  if (!combined) {
    std::printf("combine: %s\n", combined.status.to_string().c_str());
    return false;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (out[i] == 2.0F * x[i]) continue;
    std::printf("rank %d: out[%zu] is %f, expected %f\n", world.rank(), i,
                static_cast<double>(out[i]), static_cast<double>(2.0F * x[i]));
    return false;
  }
  layer->finalize();
  return world.leave(std::chrono::seconds(10)).ok();
}

}  // namespace

int main() {
  auto worlds = sluice::World::threads(2);
  if (!worlds) {
    std::printf("threads: %s\n", worlds.status().to_string().c_str());
    return 1;
  }
  bool good[2] = {};
  std::thread other([&] { good[1] = run_rank((*worlds)[1]); });
  good[0] = run_rank((*worlds)[0]);
  other.join();
  if (!good[0] || !good[1]) return 1;
  std::printf("Sluice %s works from an install tree\n", std::string(sluice::version()).c_str());
  return 0;
}
