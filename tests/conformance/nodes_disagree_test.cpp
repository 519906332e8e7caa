// SPDX-License-Identifier: MIT
// Ranks on two nodes that make different calls, or miss one: what passes between the nodes is put
// together by one rank for its neighbours, and still everybody is told, or given up at the deadline, and
// the calls after it are right.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "conformance/scenario.hpp"
#include "sluice/communicator.hpp"
#include "support/place.hpp"
#include "support/run_ranks.hpp"

namespace sluice::conformance {
namespace {

constexpr int kRanks = 4;
constexpr int kTokens = 4;
constexpr int kTopk = 2;
constexpr int kHidden = 64;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// In memory that this rank's calls can use, and the test.
template <typename T>
class Values {
 public:
  explicit Values(std::size_t count, T value = {})
      : memory_(support::place().allocate(count * sizeof(T))), count_(count) {
    fill(value);
  }
  void fill(T value) { std::fill_n(data(), count_, value); }
  T* data() const { return static_cast<T*>(memory_.get()); }
  T* begin() const { return data(); }
  T* end() const { return data() + count_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t count_;
};

/// What a combine came to.
struct Outcome {
  Status status;
  Report report;
};

/// One rank's calls: experts return what they get.
class Calls {
 public:
  Calls(World& world, support::Findings& findings, std::chrono::milliseconds deadline)
      : findings_(findings), rank_(world.rank()) {
    CommunicatorOptions options;
    options.layout = Layout::expert_major;
    options.dispatch_codec = {CodecKind::f32};
    options.combine_codec = CodecKind::f32;
    support::place().adapt(options);
    options.deadline = options.first_deadline = deadline;
    auto made = Communicator::create(world, Shape{2 * kRanks, kTopk, kHidden, kTokens}, options);
    if (!made.ok()) {
      findings.add("create: " + made.status().to_string());
      return;
    }
    communicator_.emplace(std::move(made).value());
    for (int route = 0; route < kTokens * kTopk; ++route) {
      ids_.data()[route] = (route * 3 + rank_) % (2 * kRanks);
    }
    x_.fill(static_cast<float>(rank_ + 1));
  }
  bool made() const { return communicator_.has_value(); }
  Communicator& communicator() { return *communicator_; }

  void dispatch() {
    DispatchOptions options;
    options.stream = support::place().stream();
    received_ =
        communicator_->dispatch(here({x_.data(), DType::f32, kTokens, kHidden}),
                                here({ids_.data(), DType::i32, kTokens, kTopk}),
                                here({weights_.data(), DType::f32, kTokens, kTopk}), options);
    support::place().finish();
    if (!received_.status.ok()) findings_.add("dispatch: " + received_.status.to_string());
  }
  Outcome combine(Reduce reduce, bool given_weights, CodecKind codec = CodecKind::f32) {
    CombineOptions options;
    options.reduce = reduce;
    options.codec = codec;
    options.stream = support::place().stream();
    if (given_weights) options.weights = here({weights_.data(), DType::f32, kTokens, kTopk});
    out_.fill(0.0F);
    CombineOutputs outputs;
    outputs.report = new (report_.data()) Report();
    const auto start = std::chrono::steady_clock::now();
    const CombineResult result =
        communicator_->combine(received_.rows, received_.handle,
                               here({out_.data(), DType::f32, kTokens, kHidden}), options, outputs);
    support::place().finish();
    seconds_ = seconds_since(start);
    return {result.status, *outputs.report};
  }
  double seconds() const { return seconds_; }
  // All routes of a token bring the same, so that those which come are scaled to what all would be.
  void check_values(bool some_may_be_lost, const char* when) const {
    for (const float value : out_) {
      if (value == static_cast<float>(kTopk * (rank_ + 1))) continue;
      if (some_may_be_lost && value == 0.0F) continue;
      return findings_.add(fmt::format("{}: {}, expected {}", when, value, kTopk * (rank_ + 1)));
    }
  }

  void one_that_agrees(const char* when) {
    dispatch();
    const Outcome result = combine(Reduce::node, false);
    if (!result.status.ok()) findings_.add(fmt::format("{}: {}", when, result.status.to_string()));
    check_values(false, when);
  }

 private:
  static TensorView here(TensorView view) {
    view.device = support::place().device();
    return view;
  }

  support::Findings& findings_;
  int rank_;
  Values<std::int32_t> ids_{kTokens * kTopk};
  Values<float> x_{kTokens * kHidden};
  Values<float> weights_{kTokens * kTopk, 1.0F};
  Values<float> out_{kTokens * kHidden};
  Values<Report> report_{1};
  std::optional<Communicator> communicator_;
  Received received_;
  double seconds_ = 0;
};

class TwoNodesDisagree : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
    ::setenv("SLUICE_NETWORK", "memory", 1);
    ::setenv("SLUICE_NETWORK_PATIENCE_MS", "60000", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK", "SLUICE_NETWORK_PATIENCE_MS"})
      ::unsetenv(name);
  }
  /// Which ranks are odd.
  static bool odd(int rank) { return (GetParam() >> rank & 1U) != 0; }

  static void run(std::chrono::milliseconds deadline,
                  const std::function<void(Calls&, World&, support::Findings&)>& body) {
    const auto rank_body = [&](World& world, support::Findings& findings) {
      Calls calls(world, findings, deadline);
      if (!calls.made()) return;
      calls.one_that_agrees("before");
      body(calls, world, findings);
    };
    support::RunOptions options;
    options.leave = false;
    const support::RunResult result = launcher()(kRanks, rank_body, options);
    EXPECT_TRUE(result.failures.empty()) << result.text();
  }

  // Everybody sees that somebody made another call.
  void expect_mismatch(Reduce reduce_of_odd, bool weights_of_odd,
                       CodecKind codec_of_odd = CodecKind::f32) {
    run(std::chrono::seconds(8), [&](Calls& calls, World& world, support::Findings& findings) {
      const bool own = odd(world.rank());
      calls.dispatch();
      const Outcome result =
          calls.combine(own ? reduce_of_odd : Reduce::node, own && weights_of_odd,
                        own ? codec_of_odd : CodecKind::f32);
      calls.check_values(true, "then");
      // A GPU's host does not know yet.
      const bool known = support::place().device() == Device::cpu;
      if (known && result.status.code() != StatusCode::mismatch) {
        findings.add("expected a mismatch, seen " + result.status.to_string());
      }
      for (int peer = 0; peer < kRanks; ++peer) {
        if (odd(peer) != own && !result.report.mismatched.contains(peer))
          findings.add(fmt::format("rank {} is not in report.mismatched", peer));
        if (result.report.missing.contains(peer))
          findings.add(fmt::format("rank {} is in report.missing", peer));
      }
      if (calls.seconds() > 6) findings.add("the deadline was needed");
      for (int turn = 0; turn < 7; ++turn) calls.one_that_agrees("after");
    });
  }
};

class TwoNodesMiss : public TwoNodesDisagree {};

TEST_P(TwoNodesDisagree, OnReduce) {
  expect_mismatch(Reduce::rank, false);
}

TEST_P(TwoNodesDisagree, OnWeights) {
  expect_mismatch(Reduce::node, true);
}

TEST_P(TwoNodesDisagree, OnCodec) {
  expect_mismatch(Reduce::node, false, CodecKind::bf16);
}

// A rank that lives and makes no more calls costs the others one deadline, or two, and itself; and those
// whose rail peer it is its node.
TEST_P(TwoNodesMiss, ACombine) {
  const int absent = static_cast<int>(GetParam());
  const auto near = [](int rank) { return rank / 2; };
  const auto rail_peer = [&](int rank) { return 2 * (1 - near(rank)) + rank % 2; };
  std::atomic<int> ended{0};
  run(std::chrono::seconds(1), [&](Calls& calls, World& world, support::Findings& findings) {
    const int rank = world.rank();
    calls.dispatch();
    if (rank == absent) {
      while (ended.load() < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    RankSet missing;
    for (int turn = 0; turn < 8; ++turn) {
      if (turn > 0) calls.dispatch();
      const Outcome result = calls.combine(Reduce::node, false);
      if (!result.status.ok()) findings.add(result.status.to_string());
      if (calls.seconds() > (turn == 0 ? 3.9 : turn == 1 ? 2.9 : 0.9)) {
        findings.add(fmt::format("combine {} took {:.3f} s", turn, calls.seconds()));
      }
      for (int peer = 0; peer < kRanks; ++peer) {
        if (result.report.missing.contains(peer)) missing.insert(peer);
      }
    }
    ++ended;
    if (!missing.contains(absent)) findings.add("the rank that missed it is not missing");
    for (int peer = 0; peer < kRanks; ++peer) {
      const bool cut_off =
          near(peer) != near(rank) && (rail_peer(rank) == absent || rail_peer(peer) == absent);
      if (peer != absent && !cut_off && missing.contains(peer))
        findings.add(fmt::format("rank {} is missing, too", peer));
    }
  });
}

// All but one, two, three; of one node, of both.
INSTANTIATE_TEST_SUITE_P(Conformance, TwoNodesDisagree,
                         ::testing::Values(1U, 2U, 3U, 5U, 9U, 10U, 12U, 7U, 14U));

INSTANTIATE_TEST_SUITE_P(Conformance, TwoNodesMiss, ::testing::Range(0U, 4U));

}  // namespace
}  // namespace sluice::conformance
