// SPDX-License-Identifier: MIT
// A thousand runs on GPUs of the same calls, with other numbers of blocks, other streams and other
// delays each time: one hash.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "sluice/communicator.hpp"
#include "support/data.hpp"
#include "support/gpu_main.hpp"
#include "support/gpu_place.hpp"
#include "support/routing.hpp"
#include "support/run_ranks.hpp"
#include "support/tensor.hpp"

namespace sluice::conformance {
namespace {

constexpr int kRanks = 4;
constexpr int kExperts = 16;
constexpr int kTopk = 4;
constexpr int kHidden = 1024;
constexpr int kMaxTokens = 80;
#if SLUICE_CUDA_SIMULATED
constexpr int kRunsOfOneKind = 4;  // A run takes long.
#else
constexpr int kRunsOfOneKind = 100;
#endif

/// What must make no difference.
struct Circumstances {
  int block_limit = 0;
  bool two_streams = false;
  bool delays = false;
};
constexpr Circumstances kKinds[] = {
    {0, false, false}, {1, false, true}, {3, true, true}, {9, true, true}, {20, false, true}};

class Hash {
 public:
  void add(const support::Tensor& tensor) {
    const auto* at = static_cast<const std::byte*>(tensor.view().data);
    for (std::size_t i = 0; i + 8 <= tensor.bytes(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + i, 8);
      value_ = (value_ ^ word) * 1099511628211U;
      value_ ^= value_ >> 29;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

/// One rank's tensors: the same in every run.
struct Tensors {
  support::Tensor x, ids, weights, y, rows, scales, out;

  Tensors(int rank, int tokens, int local_experts)
      : x(DType::bf16, {tokens, kHidden}),
        ids(DType::i32, {tokens, kTopk}),
        weights(DType::f32, {tokens, kTopk}),
        y(DType::bf16, {local_experts, kRanks * tokens, kHidden}),
        rows(DType::e4m3, {local_experts, kRanks * tokens, kHidden}),
        scales(DType::f32, {local_experts, kRanks * tokens, kHidden / 128}),
        out(DType::bf16, {tokens, kHidden}) {
    const auto who = static_cast<std::uint64_t>(rank);
    const auto random = [&](std::uint64_t what) { return support::Random::of(7, what, who); };
    const auto count = static_cast<std::size_t>(tokens);
    x.fill(support::draw_elements(DType::bf16, count * kHidden, support::DataKind::ordinary,
                                  random(1)));
    const auto drawn =
        support::draw_ids(support::RoutingKind::distinct, tokens, kTopk, kExperts, 0, random(2));
    const std::vector<std::int32_t> narrow(drawn.begin(), drawn.end());
    std::memcpy(ids.view().data, narrow.data(), narrow.size() * sizeof(std::int32_t));
    const auto w = support::draw_weights(count * kTopk, support::DataKind::ordinary, random(3));
    std::memcpy(weights.view().data, w.data(), w.size() * sizeof(float));
    y.fill(
        support::draw_elements(DType::bf16, y.bytes() / 2, support::DataKind::ordinary, random(4)));
  }
};

std::string words_of(const RankSet& set) {
  return std::to_string(set.words[0]);
}

std::string milliseconds_of(std::chrono::steady_clock::duration time) {
  return std::to_string(std::chrono::duration<double, std::milli>(time).count()) + " ms";
}

/// The hashes of all runs of a rank under given circumstances; what is wrong goes to `findings`.
void run_kind(World& world, const Circumstances& kind, Mode mode, Tensors& t,
              support::Place& second, std::vector<std::uint64_t>& hashes,
              support::Findings& findings) {
  void* const second_stream = second.stream();
  CommunicatorOptions options;
  options.mode = mode;
  options.layout = Layout::expert_slab;
  options.dispatch_codec = {CodecKind::fp8, ScaleForm::f32, 128};
  options.block_limit = kind.block_limit;
  support::place().adapt(options);
  Result<Communicator> communicator =
      Communicator::create(world, {kExperts, kTopk, kHidden, kMaxTokens}, options);
  if (!communicator) {
    findings.add(communicator.status().to_string());
    return;
  }
  const support::Tensor handle(DType::u8,
                               {static_cast<std::int64_t>(communicator->handle_bytes())});
  support::Random random = support::Random::of(99, static_cast<std::uint64_t>(world.rank()),
                                               static_cast<std::uint64_t>(kind.block_limit));
  const auto pass = [&] {
    if (!kind.delays || random.chance(50)) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(200)));
  };
  using Clock = std::chrono::steady_clock;
  Clock::duration longest{};
  std::string about_longest;
  for (int run = 0; run < kRunsOfOneKind; ++run) {
    const Clock::time_point begin = Clock::now();
    DispatchOptions dispatch;
    dispatch.stream = kind.two_streams && run % 2 == 1 ? second_stream : support::place().stream();
    DispatchOutputs outputs;
    outputs.rows = t.rows.view();
    outputs.scales = t.scales.view();
    outputs.handle = Handle(handle.view().data, handle.bytes(), Device::cuda);
    CombineOptions combine;
    combine.stream = kind.two_streams && run % 3 == 1 ? second_stream : support::place().stream();
    std::memset(t.out.view().data, 0xFF, t.out.bytes());
    pass();
    const Received received =
        communicator->dispatch(t.x.view(), t.ids.view(), t.weights.view(), dispatch, outputs);
    pass();
    const CombineResult combined =
        communicator->combine(t.y.view(), received.handle, t.out.view(), combine);
    if (!received || !combined.status.ok()) {
      findings.add(received.status.to_string() + "; " + combined.status.to_string());
      return;
    }
    const Clock::time_point called = Clock::now();
    // One of them has the last call.
    support::place().finish();
    second.finish();
    if (const Clock::duration took = Clock::now() - begin; took > longest) {
      longest = took;
      about_longest = "run " + std::to_string(run) + " took longest, " + milliseconds_of(took) +
                      ", its calls " + milliseconds_of(called - begin);
    }
    Hash hash;
    hash.add(t.rows);
    hash.add(t.scales);
    hash.add(t.out);
    hashes.push_back(hash.value());
  }
  const Statistics all = communicator->statistics();
  if (all.combine_reports.lost_routes != 0) {
    findings.add(
        "with a limit of " + std::to_string(kind.block_limit) + " blocks " +
        std::to_string(all.combine_reports.lost_routes) +
        " routes were lost; missing in dispatches: " + words_of(all.dispatch_reports.missing) +
        ", in combines: " + words_of(all.combine_reports.missing) + "; " + about_longest);
  }
}

void expect_one_hash(Mode mode, int tokens) {
  const support::RankBody body = [mode, tokens](World& world, support::Findings& findings) {
    const std::unique_ptr<support::Place> place =
        support::gpu_place(world.rank(), support::longest_wait());
    const std::unique_ptr<support::Place> second =
        support::gpu_place(world.rank(), support::longest_wait());
    support::set_place(place.get());
    Tensors tensors(world.rank(), tokens, kExperts / kRanks);
    std::vector<std::uint64_t> hashes;
    for (const Circumstances& kind : kKinds) {
      run_kind(world, kind, mode, tensors, *second, hashes, findings);
    }
    const std::size_t expected = std::size(kKinds) * kRunsOfOneKind;
    if (hashes.size() != expected) findings.add("not all runs were made");
    for (std::size_t run = 0; run < hashes.size(); ++run) {
      if (hashes[run] != hashes[0]) {
        findings.add("run " + std::to_string(run) + " has another hash than the first");
        break;
      }
    }
    support::set_place(nullptr);
  };
  support::prepare_gpu_places();
  EXPECT_EQ(support::run_as_threads(kRanks, body, {}).text(), "");
}

TEST(CudaDeterminism, ManyRunsOfFewTokens) {
  expect_one_hash(Mode::latency, 8);
}
TEST(CudaDeterminism, ManyRunsOfManyTokens) {
  expect_one_hash(Mode::latency, kMaxTokens);
}
TEST(CudaDeterminism, ManyRunsInThroughputMode) {
  expect_one_hash(Mode::throughput, kMaxTokens);
}

}  // namespace
}  // namespace sluice::conformance

int main(int argc, char** argv) {
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
}
