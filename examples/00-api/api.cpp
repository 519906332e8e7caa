// SPDX-License-Identifier: MIT
//
// The API in twenty lines, as README.md shows it; run here on two threads with experts that return
// their rows unchanged.
#include <cstdint>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/sluice.hpp>

namespace {

/// Stands for the user's experts: y is a tensor like the rows.
sluice::ConstTensorView run_my_experts(const sluice::TensorView& rows, const sluice::Handle&) {
  return rows;
}

// [readme begin]
sluice::Status moe_step(sluice::World& world, sluice::ConstTensorView x, sluice::TensorView out,
                        sluice::ConstTensorView topk_ids, sluice::ConstTensorView topk_weights) {
  // 64 experts over all ranks, 6 of them per token, rows of 2048 elements.
  sluice::Shape shape{.experts = 64, .top_k = 6, .hidden = 2048, .max_tokens = 128};
  auto comm = sluice::Communicator::create(world, shape);
  if (!comm) return comm.status();

  // Every token goes to the ranks of its experts; their rows come back, expert by expert.
  auto received = comm->dispatch(x, topk_ids, topk_weights);
  if (!received) return received.status;

  auto y = run_my_experts(received.rows, received.handle);

  // The experts' results go home and are summed there, weighted.
  auto combined = comm->combine(y, received.handle, out);
  return combined.status;
}
// [readme end]

bool run_rank(sluice::World world) {
  constexpr std::int64_t tokens = 128;
  constexpr std::int64_t top_k = 6;
  constexpr std::int64_t hidden = 2048;
  std::vector<float> x(tokens * hidden, 3.0F);
  std::vector<float> out(x.size());
  std::vector<std::int32_t> ids(tokens * top_k);
  std::vector<float> weights(ids.size(), 0.125F);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 11 % 64);
  const sluice::Status status = moe_step(world, {x.data(), sluice::DType::f32, tokens, hidden},
                                         {out.data(), sluice::DType::f32, tokens, hidden},
                                         {ids.data(), sluice::DType::i32, tokens, top_k},
                                         {weights.data(), sluice::DType::f32, tokens, top_k});
  if (!status) {
    std::printf("rank %d: %s\n", world.rank(), status.to_string().c_str());
    return false;
  }
  for (const float value : out) {
    if (value == 6 * 0.125F * 3.0F) continue;  // Exact in bf16.
    std::printf("rank %d: %f came home, expected 2.25\n", world.rank(), static_cast<double>(value));
    return false;
  }
  return world.leave(std::chrono::seconds(10)).ok();
}

}  // namespace

int main() {
  auto worlds = sluice::World::threads(2);
  if (!worlds) {
    std::printf("%s\n", worlds.status().to_string().c_str());
    return 1;
  }
  bool good[2] = {};
  std::thread other([&] { good[1] = run_rank(std::move((*worlds)[1])); });
  good[0] = run_rank(std::move((*worlds)[0]));
  other.join();
  if (good[0] && good[1]) std::printf("2 ranks: every token came home\n");
  return good[0] && good[1] ? 0 : 1;
}
