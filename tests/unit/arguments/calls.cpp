// SPDX-License-Identifier: MIT
#include "calls.hpp"

#include <gtest/gtest.h>

#include <bit>

namespace sluice::arguments {
namespace {

// bf16 of a small whole number: the upper half of its f32.
std::uint16_t bf16(int value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
}

}  // namespace

Fixture::Fixture(Layout layout) {
  Result<std::vector<World>> worlds = World::threads(1);
  EXPECT_TRUE(worlds.ok());
  worlds_ = std::move(worlds).value();
  CommunicatorOptions options;
  options.layout = layout;
  options.mode = Mode::latency;
  options.registered_bytes = 1 << 16;
  Result<Communicator> made = Communicator::create(worlds_[0], shape(), options);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  communicator_.emplace(std::move(made).value());
  for (int i = 0; i < kTokens * kHidden; ++i) x_.push_back(bf16(i % 100));
  out_.resize(x_.size());
  for (int i = 0; i < kTokens; ++i) {
    ids_.insert(ids_.end(), {i % kExperts, (i + 1) % kExperts});
    weights_.insert(weights_.end(), {0.5F, 0.5F});
  }
}

DispatchArguments Fixture::dispatch_arguments() {
  DispatchArguments a;
  a.x = {x_.data(), DType::bf16, kTokens, kHidden};
  a.ids = {ids_.data(), DType::i32, kTokens, kTopK};
  a.weights = {weights_.data(), DType::f32, kTokens, kTopK};
  return a;
}

Received Fixture::dispatch(const DispatchArguments& a) {
  return communicator_->dispatch(a.x, a.ids, a.weights, a.options, a.outputs);
}

CombineArguments Fixture::combine_arguments(const Received& received) {
  CombineArguments a;
  a.y = received.rows;
  a.handle = received.handle;
  a.out = {out_.data(), DType::bf16, kTokens, kHidden};
  return a;
}

CombineResult Fixture::combine(const CombineArguments& a) {
  return communicator_->combine(a.y, a.handle, a.out, a.options, a.outputs);
}

// Experts that return their input, weights 1/2 and 1/2: x comes back. In rank_major y is the sum
// already, and comes back once.
std::string Fixture::good_round() {
  std::fill(out_.begin(), out_.end(), std::uint16_t{0xFFFF});
  const Received received = dispatch(dispatch_arguments());
  if (!received.status.ok()) return "dispatch: " + received.status.to_string();
  const CombineResult result = combine(combine_arguments(received));
  if (!result.status.ok()) return "combine: " + result.status.to_string();
  return out_ == x_ ? "" : "x did not come back";
}

void expect_status(const std::string& name, const Status& status, StatusCode code,
                   const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << name << ": " << status.to_string();
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << name << ": \"" << status.message() << "\" does not say \"" << word << "\"";
  }
}

void expect_refused(Fixture& fixture, const std::vector<Bad>& table) {
  for (const Bad& bad : table) {
    expect_status(bad.name, bad.call(fixture), bad.code, bad.words);
    EXPECT_EQ(fixture.good_round(), "") << "after " << bad.name;
  }
}

}  // namespace sluice::arguments
