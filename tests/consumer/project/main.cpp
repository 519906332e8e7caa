// SPDX-License-Identifier: MIT
//
// A stranger's program: two ranks as threads, experts that double their input, and a check of what
// comes home; and a world that is joined through a store of the stranger's own.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

// For a world of one rank, which waits for nobody.
class OwnStore final : public sluice::Store {
  using Time = std::chrono::nanoseconds;

 public:
  sluice::Status set(std::string_view key, std::string_view value, Time /*timeout*/) override {
    keys_[std::string(key)] = value;
    return {};
  }
  sluice::Result<std::string> get(std::string_view key, Time /*timeout*/) override {
    const auto found = keys_.find(std::string(key));
    if (found != keys_.end()) return found->second;
    return sluice::Status(sluice::StatusCode::deadline_exceeded, "no such key");
  }
  sluice::Result<std::int64_t> add(std::string_view key, std::int64_t delta,
                                   Time /*timeout*/) override {
    std::string& value = keys_[std::string(key)];
    const std::int64_t sum = (value.empty() ? 0 : std::stoll(value)) + delta;
    value = std::to_string(sum);
    return sum;
  }
  sluice::Result<Swap> compare_and_set(std::string_view key,
                                       const std::optional<std::string>& expected,
                                       std::string_view desired, Time /*timeout*/) override {
    std::optional<std::string> now;
    if (const auto found = keys_.find(std::string(key)); found != keys_.end()) now = found->second;
    if (now != expected) return Swap{false, now};
    keys_[std::string(key)] = desired;
    return Swap{true, std::string(desired)};
  }
  sluice::Result<bool> erase(std::string_view key, Time /*timeout*/) override {
    return keys_.erase(std::string(key)) > 0;
  }
  bool empty() const { return keys_.empty(); }

 private:
  std::map<std::string, std::string> keys_;
};

bool join_through_own_store() {
  const auto store = std::make_shared<OwnStore>();
  auto world = sluice::World::join(0, 1, store);
  if (!world) {
    std::printf("join: %s\n", world.status().to_string().c_str());
    return false;
  }
  return world->barrier().ok() && world->leave(std::chrono::seconds(10)).ok() && store->empty();
}

}  // namespace

int main() {
  if (!join_through_own_store()) return 1;
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
