// SPDX-License-Identifier: MIT
#include "sluice/moe_layer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "sluice/world.hpp"
#include "support/run_ranks.hpp"

namespace {

using sluice::CombineResult;
using sluice::DType;
using sluice::MoeLayer;
using sluice::Received;
using sluice::StatusCode;
using sluice::World;
using sluice::support::Findings;
using sluice::support::run_as_threads;

constexpr int kRanks = 3;
constexpr int kTokens = 5;
constexpr int kTopk = 2;
constexpr int kHidden = 32;
constexpr sluice::Shape kShape{
    .experts = 7, .top_k = kTopk, .hidden = kHidden, .max_tokens = kTokens};

/// One rank's tokens, different on every rank and in every round.
struct Batch {
  std::vector<float> x = std::vector<float>(kTokens * kHidden);
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(kTokens * kTopk);
  std::vector<float> weights = std::vector<float>(kTokens * kTopk);
  std::vector<float> out = std::vector<float>(kTokens * kHidden, -77.0F);

  Batch(int rank, int round) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(static_cast<int>(i * 7 + static_cast<std::size_t>(rank)) % 61 - 30 +
                                round);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = (static_cast<int>(i) * 3 + rank + round) % kShape.experts;
      weights[i] = 0.25F + 0.125F * static_cast<float>(i % 3);
    }
  }
  sluice::ConstTensorView x_view() const { return {x.data(), DType::f32, kTokens, kHidden}; }
  sluice::ConstTensorView ids_view() const { return {ids.data(), DType::i32, kTokens, kTopk}; }
  sluice::ConstTensorView weights_view() const {
    return {weights.data(), DType::f32, kTokens, kTopk};
  }
  sluice::TensorView out_view() { return {out.data(), DType::f32, kTokens, kHidden}; }
};

void expect(Findings& findings, bool condition, const std::string& what) {
  if (!condition) findings.add(what);
}

TEST(MoeLayer, GivesTheBitsOfItsCommunicator) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    auto layer = MoeLayer::create(world, kShape);
    auto other = sluice::Communicator::create(world, kShape);
    if (!layer || !other) return findings.add("create: " + layer.status().to_string());
    for (int round = 0; round < 4; ++round) {
      Batch mine(world.rank(), round);
      Batch theirs(world.rank(), round);
      const Received& received =
          layer->dispatch(mine.x_view(), mine.ids_view(), mine.weights_view());
      expect(findings, received.status.ok(), received.status.to_string());
      const CombineResult combined = layer->combine(received.rows, mine.out_view());
      expect(findings, combined.status.ok(), combined.status.to_string());

      Received plain = other->dispatch(theirs.x_view(), theirs.ids_view(), theirs.weights_view());
      expect(findings, plain.status.ok(), plain.status.to_string());
      const CombineResult plainly = other->combine(plain.rows, plain.handle, theirs.out_view());
      expect(findings, plainly.status.ok(), plainly.status.to_string());
      expect(findings, mine.out != Batch(world.rank(), round).out, "combine wrote nothing");
      expect(
          findings,
          std::memcmp(mine.out.data(), theirs.out.data(), mine.out.size() * sizeof(float)) == 0,
          "round " + std::to_string(round) + ": the layer's bits differ from the communicator's");
    }
  });
  EXPECT_EQ(result.text(), "");
}

TEST(MoeLayer, CombinesAgainAfterTheRowsWereReleased) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    auto layer = MoeLayer::create(world, kShape);
    if (!layer) return findings.add("create: " + layer.status().to_string());
    Batch batch(world.rank(), 0);
    const Received& received =
        layer->dispatch(batch.x_view(), batch.ids_view(), batch.weights_view());
    if (!received) return findings.add(received.status.to_string());
    // Rows are bf16 by default; y must outlive them.
    std::vector<std::uint16_t> y(static_cast<std::size_t>(received.handle.rows()) * kHidden);
    if (!y.empty()) std::memcpy(y.data(), received.rows.data, y.size() * sizeof(std::uint16_t));
    const sluice::ConstTensorView y_view(y.data(), DType::bf16, received.handle.rows(), kHidden);
    layer->release_rows();
    expect(findings, !layer->received().rows.given(), "released rows still look given");
    expect(findings, layer->combine(y_view, batch.out_view()).status.ok(), "first combine");
    Batch again(world.rank(), 0);
    expect(findings, layer->combine(y_view, again.out_view()).status.ok(), "second combine");
    expect(findings, batch.out == again.out && batch.out[0] != -77.0F, "combines differ");
  });
  EXPECT_EQ(result.text(), "");
}

TEST(MoeLayer, RefusesCombineBeforeDispatchAndWorksAfterwards) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    auto layer = MoeLayer::create(world, kShape);
    if (!layer) return findings.add("create: " + layer.status().to_string());
    Batch batch(world.rank(), 0);
    const CombineResult early = layer->combine({}, batch.out_view());
    expect(findings, early.status.code() == StatusCode::invalid_argument,
           "expected a refusal, seen " + early.status.to_string());
    const Received& received =
        layer->dispatch(batch.x_view(), batch.ids_view(), batch.weights_view());
    expect(findings, received.status.ok(), received.status.to_string());
    const CombineResult combined = layer->combine(received.rows, batch.out_view());
    expect(findings, combined.status.ok() && combined.report.lost_routes == 0,
           combined.status.to_string());
  });
  EXPECT_EQ(result.text(), "");
}

TEST(MoeLayer, SaysSoAfterFinalize) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    auto layer = MoeLayer::create(world, kShape);
    if (!layer) return findings.add("create: " + layer.status().to_string());
    Batch batch(world.rank(), 0);
    expect(findings, !layer->finalized(), "finalized from the start");
    layer->finalize();
    layer->finalize();
    expect(findings, layer->finalized(), "not finalized");
    const Received& received =
        layer->dispatch(batch.x_view(), batch.ids_view(), batch.weights_view());
    expect(findings, received.status.code() == StatusCode::failed_precondition,
           received.status.to_string());
    const CombineResult combined = layer->combine({}, batch.out_view());
    expect(findings, combined.status.code() == StatusCode::failed_precondition,
           combined.status.to_string());
  });
  EXPECT_EQ(result.text(), "");
}

TEST(MoeLayer, MovesLeaveAFinalizedOneBehind) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    auto first = MoeLayer::create(world, kShape);
    auto second = MoeLayer::create(world, kShape);
    if (!first || !second) return findings.add("create: " + first.status().to_string());
    MoeLayer moved(std::move(first).value());
    expect(findings, first->finalized() && !moved.finalized(), "after construction");
    moved = std::move(second).value();
    expect(findings, second->finalized() && !moved.finalized(), "after assignment");
    Batch batch(world.rank(), 0);
    const Received& received =
        moved.dispatch(batch.x_view(), batch.ids_view(), batch.weights_view());
    expect(findings, received.status.ok(), received.status.to_string());
    expect(findings, moved.combine(received.rows, batch.out_view()).status.ok(), "combine");
  });
  EXPECT_EQ(result.text(), "");
}

TEST(MoeLayer, CreationReportsWhatTheCommunicatorSays) {
  const auto result = run_as_threads(kRanks, [](World& world, Findings& findings) {
    sluice::Shape shape = kShape;
    shape.hidden = 17;
    auto layer = MoeLayer::create(world, shape);
    expect(findings, !layer && layer.status().code() == StatusCode::invalid_argument,
           "expected a refusal of hidden = 17, seen " + layer.status().to_string());
  });
  EXPECT_EQ(result.text(), "");
}

}  // namespace
