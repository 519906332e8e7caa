// SPDX-License-Identifier: MIT
// Communicators that cannot be made: every rank gets the same text, and the world works on.
#include <functional>

#include "conformance/modes.hpp"
#include "conformance/rules.hpp"
#include "support/compare.hpp"

namespace sluice::conformance {
namespace {

using support::expect_true;

struct BadScenario {
  std::string name;
  std::function<void(Scenario&)> spoil;
  std::vector<std::string> texts;  // What the message must contain.
};

class Creation : public ModeTest {
 protected:
  /// Creates as `spoil` says on the ranks for which `spoiled` holds, compares the texts, and then
  /// uses the world.
  std::string run_bad(const std::vector<BadScenario>& bad, bool one_rank) {
    const Scenario good = small();
    const Step step = prepare_step(good, StepSpec{}, 0);
    const auto body = [&](World& world, support::Findings& findings) {
      for (const BadScenario& entry : bad) {
        Scenario mine = good;
        if (!one_rank || world.rank() == 2) entry.spoil(mine);
        findings.set_context(entry.name + ": ");
        Result<Communicator> made = Communicator::create(world, mine.shape, mine.options);
        expect_true(findings, kRefusal, "the communicator was created", !made.ok());
        const std::string text = made.status().to_string();
        for (const std::string& wanted : entry.texts) {
          expect_true(findings, kRefusal, "\"" + wanted + "\" is not in: " + text,
                      text.find(wanted) != std::string::npos);
        }
        const auto texts = world.all_gather(text);
        if (!texts.ok()) {
          findings.add("all_gather: " + texts.status().to_string());
          continue;
        }
        for (const std::string& other : *texts) {
          expect_true(findings, kRefusal, "ranks got different texts: " + text + " / " + other,
                      other == text);
        }
      }
      findings.set_context("");
      std::optional<Communicator> communicator = make_communicator(world, good, findings);
      if (communicator.has_value()) run_step(*communicator, step, findings);
    };
    return launcher()(good.ranks, body, {}).text();
  }
};

TEST_P(Creation, DifferentOnOneRank) {
  const Mode other = GetParam() == Mode::latency ? Mode::throughput : Mode::latency;
  expect_clean(run_bad(
      {
          {"experts", [](auto& s) { s.shape.experts = 9; }, {"8", "9"}},
          {"top_k", [](auto& s) { s.shape.top_k = 5; }, {"3", "5"}},
          {"hidden", [](auto& s) { s.shape.hidden = 64; }, {"48", "64"}},
          {"max_tokens", [](auto& s) { s.shape.max_tokens = 17; }, {"8", "17"}},
          {"mode", [other](auto& s) { s.options.mode = other; }, {"latency", "throughput"}},
          {"layout",
           [](auto& s) { s.options.layout = Layout::rank_major; },
           {"expert_major", "rank_major"}},
          {"dispatch codec",
           [](auto& s) { s.options.dispatch_codec.kind = CodecKind::fp8; },
           {"bf16", "fp8"}},
          {"combine codec",
           [](auto& s) { s.options.combine_codec = CodecKind::f32; },
           {"bf16", "f32"}},
          {"in_flight", [](auto& s) { s.options.in_flight = 3; }, {"2", "3"}},
          {"permit_single", [](auto& s) { s.options.permit_single = true; }, {}},
          {"y_memory", [](auto& s) { s.options.y_memory = YMemory::registered; }, {}},
          {"map", [](auto& s) { s.options.expert_to_rank = {3, 2, 1, 0, 3, 2, 1, 0}; }, {}},
      },
      true));
}

std::vector<BadScenario> illegal() {
  return {
      {"no experts", [](auto& s) { s.shape.experts = 0; }, {"experts"}},
      {"too many experts", [](auto& s) { s.shape.experts = kMaxExperts + 1; }, {"4097"}},
      {"no routes", [](auto& s) { s.shape.top_k = 0; }, {"top_k"}},
      {"too many routes", [](auto& s) { s.shape.top_k = kMaxTopk + 1; }, {"33"}},
      {"hidden of 40", [](auto& s) { s.shape.hidden = 40; }, {"40", "16"}},
      {"hidden of 0", [](auto& s) { s.shape.hidden = 0; }, {"hidden"}},
      {"too long rows", [](auto& s) { s.shape.hidden = kMaxHidden + 16; }, {"65552"}},
      {"no tokens", [](auto& s) { s.shape.max_tokens = 0; }, {"max_tokens"}},
      {"too many tokens", [](auto& s) { s.shape.max_tokens = kMaxTokens + 1; }, {"1048577"}},
      {"in_flight of 0", [](auto& s) { s.options.in_flight = 0; }, {"in_flight"}},
      {"in_flight of 5", [](auto& s) { s.options.in_flight = 5; }, {"in_flight", "5"}},
      {"fp8 in combine", [](auto& s) { s.options.combine_codec = CodecKind::fp8; }, {"fp8"}},
      {"a group of 48",
       [](auto& s) {
         s.options.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 48};
       },
       {"48"}},
      {"a map of 7 entries",
       [](auto& s) { s.options.expert_to_rank = {0, 1, 2, 3, 0, 1, 2}; },
       {"7", "8"}},
      {"a map to rank 4",
       [](auto& s) { s.options.expert_to_rank = {0, 1, 2, 3, 0, 1, 2, 4}; },
       {"4"}},
      {"a map to rank -1",
       [](auto& s) { s.options.expert_to_rank = {0, 1, 2, 3, 0, -1, 2, 3}; },
       {"-1"}},
      {"negative slot_tokens", [](auto& s) { s.options.slot_tokens = -1; }, {"slot_tokens"}},
  };
}

TEST_P(Creation, IllegalOnAllRanks) {
  expect_clean(run_bad(illegal(), false));
}
TEST_P(Creation, IllegalOnOneRank) {
  expect_clean(run_bad(illegal(), true));
}

TEST_P(Creation, MoreMemoryThanThereIs) {
  // 2^62 bytes a rank: no machine has them.
  expect_clean(run_bad({{"registered_bytes",
                         [](auto& s) { s.options.registered_bytes = std::size_t{1} << 62U; },
                         {}}},
                       false));
}

TEST_P(Creation, TellsWhatItMade) {
  Scenario scenario = small();
  scenario.shape.experts = 6;
  scenario.options.expert_to_rank = {3, 0, 3, 2, 0, 2};
  expect_clean(run_body(
      scenario, [&](World& world, Communicator& communicator, support::Findings& findings) {
        const std::vector<std::vector<std::int32_t>> owned = {{1, 4}, {}, {3, 5}, {0, 2}};
        const auto& mine = owned[static_cast<std::size_t>(world.rank())];
        const auto seen = communicator.local_expert_ids();
        expect_true(findings, kRoutes, "local_expert_ids",
                    std::vector<std::int32_t>(seen.begin(), seen.end()) == mine);
        support::expect_equal(findings, kRoutes, "local_experts",
                              static_cast<std::int64_t>(mine.size()), communicator.local_experts());
        support::expect_equal(findings, kRoutes, "rank", world.rank(), communicator.rank());
        support::expect_equal(findings, kRoutes, "size", 4, communicator.size());
        expect_true(findings, kRoutes, "mode", communicator.mode() == GetParam());
        support::expect_equal(findings, kRoutes, "hidden", 48, communicator.shape().hidden);
      }));
}

// Automatic: latency up to 512 tokens.
TEST(AutomaticMode, FollowsMaxTokens) {
  for (const int max_tokens : {512, 513}) {
    Scenario scenario;
    scenario.ranks = 2;
    scenario.shape = Shape{2, 1, 16, max_tokens};
    expect_clean(run_body(scenario, [&](World&, Communicator& communicator,
                                        support::Findings& findings) {
      expect_true(findings, "api (mode)", "automatic chose the other mode",
                  communicator.mode() == (max_tokens <= 512 ? Mode::latency : Mode::throughput));
    }));
  }
}

// Whatever the reason is: no GPU of that number, no GPU, no CUDA, or no such mode there.
TEST_P(Creation, OnAGpuThatIsNotThere) {
  const std::vector<BadScenario> bad = {{"device",
                                         [](auto& s) {
                                           s.options.device = Device::cuda;
                                           s.options.device_index = 1 << 20;
                                         },
                                         {}}};
  expect_clean(run_bad(bad, false));
}
TEST_P(Creation, DevicesThatDiffer) {
  const std::vector<BadScenario> bad = {
      {"device", [](auto& s) { s.options.device = Device::cuda; }, {"host", "cuda"}}};
  expect_clean(run_bad(bad, true));
}

INSTANTIATE_TEST_SUITE_P(Errors, Creation, both_modes(), Creation::name);

}  // namespace
}  // namespace sluice::conformance
