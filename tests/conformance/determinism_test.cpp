// SPDX-License-Identifier: MIT
// The bits of a result depend on the numbers and the order of sums, never on timing, on the mode,
// on the layout, or on what a rank is; with reduce = single not even on the number of ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "reference/reference.hpp"
#include "reference/small_float.hpp"
#include "sluice/communicator.hpp"
#include "support/data.hpp"
#include "support/routing.hpp"
#include "support/run_ranks.hpp"
#include "support/tensor.hpp"

namespace sluice::conformance {

using reference::at;

namespace {

constexpr std::int64_t kTokens = 24;  // of all ranks together
constexpr int kExperts = 12;
constexpr int kTopk = 4;
constexpr int kHidden = 64;

struct Variant {
  int ranks = 4;
  Mode mode = Mode::latency;
  Layout layout = Layout::expert_major;
  Reduce reduce = Reduce::rank;
  std::uint64_t delay_seed = 0;  // 0: none
};

// What every expert does: y = x * (1 + expert / 8), rounded to bf16. Slow, and the same everywhere.
void run_experts(const Communicator& communicator, const Received& received,
                 const support::Tensor& y) {
  const Handle& handle = received.handle;
  const auto* counts = static_cast<const std::int32_t*>(handle.counts().data);
  const auto* offsets = static_cast<const std::int64_t*>(handle.offsets().data);
  for (int local = 0; local < communicator.local_experts(); ++local) {
    const std::int32_t expert = communicator.local_expert_ids()[at(local)];
    const float factor = 1.0F + static_cast<float>(expert) / 8.0F;
    for (std::int64_t row = offsets[local]; row < offsets[local] + counts[local]; ++row) {
      const std::byte* x = support::row_of(received.rows, row);
      for (std::size_t h = 0; h < kHidden; ++h) {
        reference::store(DType::bf16, y.row(row), h, reference::load(DType::bf16, x, h) * factor);
      }
    }
  }
}

void run_rank(World& world, const Variant& variant, support::Findings& findings) {
  CommunicatorOptions options;
  options.mode = variant.mode;
  options.layout = variant.layout;
  options.reduce = variant.reduce;
  options.permit_single = variant.reduce == Reduce::single;
  options.first_deadline = std::chrono::seconds(40);
  const Shape shape{kExperts, kTopk, kHidden, static_cast<int>(kTokens)};
  Result<Communicator> communicator = Communicator::create(world, shape, options);
  if (!communicator.ok()) {
    findings.add(communicator.status().to_string());
    return;
  }
  support::Random delay =
      support::Random::of(variant.delay_seed, static_cast<std::uint64_t>(world.rank()));
  const auto pass = [&] {
    if (variant.delay_seed == 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(delay.below(2500)));
  };
  // Tokens belong to ranks in blocks; everything of a token is drawn from its global number.
  const std::int64_t share = kTokens / world.size();
  const std::int64_t first = share * world.rank();
  std::string bytes;
  for (std::uint64_t round = 0; round < 3; ++round) {
    support::Tensor x(DType::bf16, {share, kHidden});
    support::Tensor ids(DType::i32, {share, kTopk});
    support::Tensor weights(DType::f32, {share, kTopk});
    support::Tensor out(DType::bf16, {share, kHidden});
    for (std::int64_t t = 0; t < share; ++t) {
      const auto token = static_cast<std::uint64_t>(first + t);
      const auto random = [&](std::uint64_t what) {
        return support::Random::of(2024, what, token, round);
      };
      const auto row =
          support::draw_elements(DType::bf16, kHidden, support::DataKind::ordinary, random(1));
      x.set_row(t, row.data());
      const auto kind =
          round == 1 ? support::RoutingKind::duplicates : support::RoutingKind::distinct;
      const auto drawn = support::draw_ids(kind, 1, kTopk, kExperts, 0, random(2));
      const std::vector<std::int32_t> narrow(drawn.begin(), drawn.end());
      ids.set_row(t, reinterpret_cast<const std::byte*>(narrow.data()));
      const auto w = support::draw_weights(kTopk, support::DataKind::ordinary, random(3));
      weights.set_row(t, reinterpret_cast<const std::byte*>(w.data()));
    }
    pass();
    Received received = communicator->dispatch(x.view(), ids.view(), weights.view());
    if (!received) {
      findings.add("dispatch: " + received.status.to_string());
      return;
    }
    const TensorView& rows = received.rows;
    const support::Tensor y(
        DType::bf16, std::vector<std::int64_t>(rows.shape.begin(), rows.shape.begin() + rows.dims));
    run_experts(*communicator, received, y);
    pass();
    const CombineResult combined = communicator->combine(y.view(), received.handle, out.view());
    if (!combined) {
      findings.add("combine: " + combined.status.to_string());
      return;
    }
    bytes.append(static_cast<const char*>(out.view().data), out.bytes());
  }
  findings.set_note(bytes);
}

std::uint64_t hash(const std::string& bytes) {
  std::uint64_t value = 14695981039346656037U;  // FNV-1a
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return value;
}

// One hash over all tokens in global order, round by round.
std::uint64_t result_of(support::RunRanks launch, const Variant& variant) {
  const support::RunResult result = launch(
      variant.ranks,
      [&](World& world, support::Findings& findings) { run_rank(world, variant, findings); }, {});
  EXPECT_EQ(result.text(), "");
  std::string all;
  for (std::size_t round = 0; round < 3; ++round) {
    for (const std::string& note : result.notes) {
      const std::size_t part = note.size() / 3;
      all += note.substr(round * part, part);
    }
  }
  EXPECT_EQ(all.size(), 3U * kTokens * kHidden * 2U);
  return hash(all);
}

std::string describe(const Variant& variant) {
  return "R " + std::to_string(variant.ranks) + ", " + std::string(to_string(variant.mode)) + ", " +
         std::string(to_string(variant.layout)) + ", delay seed " +
         std::to_string(variant.delay_seed);
}

std::vector<Variant> variants(int ranks, Reduce reduce) {
  std::vector<Variant> all;
  for (const Mode mode : {Mode::latency, Mode::throughput}) {
    for (const Layout layout : {Layout::expert_major, Layout::expert_slab}) {
      for (const std::uint64_t delay : {0U, 1U, 2U}) {
        all.push_back({ranks, mode, layout, reduce, delay});
      }
    }
  }
  return all;
}

// Processes come first: a child is a copy of a process with one thread.
TEST(Determinism, OneHashWhateverTheTiming) {
  for (const int ranks : {2, 4}) {
    const std::uint64_t expected = result_of(support::run_as_processes, {ranks});
    for (const Variant& variant : variants(ranks, Reduce::rank)) {
      EXPECT_EQ(result_of(support::run_as_processes, variant), expected)
          << "processes, " << describe(variant);
    }
    for (const Variant& variant : variants(ranks, Reduce::rank)) {
      EXPECT_EQ(result_of(support::run_as_threads, variant), expected)
          << "threads, " << describe(variant);
    }
  }
}

TEST(Determinism, SingleDoesNotDependOnRanks) {
  const Variant alone{1, Mode::latency, Layout::expert_major, Reduce::single, 0};
  const std::uint64_t expected = result_of(support::run_as_processes, alone);
  for (const int ranks : {1, 2, 4}) {
    for (const Variant& variant : variants(ranks, Reduce::single)) {
      EXPECT_EQ(result_of(support::run_as_processes, variant), expected)
          << "processes, " << describe(variant);
    }
    for (const Variant& variant : variants(ranks, Reduce::single)) {
      EXPECT_EQ(result_of(support::run_as_threads, variant), expected)
          << "threads, " << describe(variant);
    }
  }
}

// The sums do depend on the ranks when they are formed by rank: else the test above says nothing.
TEST(Determinism, RankSumsDifferFromSingle) {
  const std::uint64_t single = result_of(
      support::run_as_processes, {4, Mode::latency, Layout::expert_major, Reduce::single, 0});
  EXPECT_NE(result_of(support::run_as_processes, {4}), single);
}

}  // namespace
}  // namespace sluice::conformance
