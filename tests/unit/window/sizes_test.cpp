// SPDX-License-Identifier: MIT
//
// What Communicator::sizes says is what a communicator maps.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "memory/pages.hpp"
#include "sluice/communicator.hpp"
#include "support/sanitizers.hpp"

namespace sluice {
namespace {

std::map<std::string, std::size_t> account(const Shape& shape, int ranks,
                                           const CommunicatorOptions& options) {
  const Result<std::vector<SizeEntry>> sizes = Communicator::sizes(shape, ranks, options);
  EXPECT_TRUE(sizes.ok()) << sizes.status().to_string();
  std::map<std::string, std::size_t> entries;
  if (!sizes.ok()) return entries;
  for (const SizeEntry& entry : *sizes) entries[entry.name] = entry.bytes;
  return entries;
}

struct Case {
  const char* name;
  Shape shape;
  CommunicatorOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"latency", Shape{8, 4, 256, 64}, {}});
  all.back().options.mode = Mode::latency;
  all.push_back({"latency, fewer slots", Shape{8, 4, 256, 1000}, {}});
  all.back().options.mode = Mode::latency;
  all.back().options.slot_tokens = 40;
  all.push_back({"single, fp8", Shape{7, 3, 240, 64}, {}});
  all.back().options.permit_single = true;
  all.back().options.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 128};
  all.push_back({"throughput", Shape{8, 4, 256, 300}, {}});
  all.back().options.mode = Mode::throughput;
  all.back().options.in_flight = 3;
  all.back().options.registered_bytes = 100000;
  return all;
}

TEST(Sizes, AddUp) {
  for (const Case& one : cases()) {
    std::map<std::string, std::size_t> entries = account(one.shape, 3, one.options);
    std::size_t sum = entries["page rounding"];
    for (const char* part : {"signals", "dispatch metadata", "combine metadata", "combine slots",
                             "dispatch staging", "combine staging"}) {
      ASSERT_EQ(entries.count(part), 1U) << part;
      sum += entries[part];
    }
    EXPECT_EQ(sum, entries["window"]) << one.name;
    EXPECT_EQ(entries["window"] % 4096, 0U) << one.name;
    EXPECT_EQ(entries["registered memory"], memory::rounded_to_pages(one.options.registered_bytes));
  }
}

// The formulas by hand, for 3 ranks and B = 5: what is sent in dispatch lies with its sender, once
// for all peers (B stages in latency mode, d in throughput mode); combine is pushed to homes in
// latency mode and staged for each in throughput mode. Experts 8 over 3 ranks is max L = 3.
TEST(Sizes, AreTheFormulas) {
  std::map<std::string, std::size_t> latency = account(cases()[0].shape, 3, cases()[0].options);
  EXPECT_EQ(latency["dispatch staging"], 5U * 64 * 512);
  EXPECT_EQ(latency["combine slots"], 5U * 3 * 64 * 512);
  EXPECT_EQ(latency["combine staging"], 0U);
  std::map<std::string, std::size_t> slots = account(cases()[1].shape, 3, cases()[1].options);
  EXPECT_EQ(slots["dispatch staging"], 5U * 40 * 512);
  EXPECT_EQ(slots["combine slots"], 5U * 3 * 40 * 512);
  // fp8: 240 bytes and 2 scales are 248, in 256; bf16 back home 480, in 512; min(3, max L 3).
  std::map<std::string, std::size_t> single = account(cases()[2].shape, 3, cases()[2].options);
  EXPECT_EQ(single["dispatch staging"], 5U * 64 * 256);
  EXPECT_EQ(single["combine slots"], 5U * 3 * 64 * 3 * 512);
  std::map<std::string, std::size_t> throughput = account(cases()[3].shape, 3, cases()[3].options);
  EXPECT_EQ(throughput["combine slots"], 0U);
  EXPECT_EQ(throughput["dispatch staging"], 3U * 300 * 512);
  EXPECT_EQ(throughput["combine staging"], 3U * 3 * 300 * 512);
}

std::size_t for_other_nodes(const std::vector<int>& node_sizes, int hidden, Device device) {
  CommunicatorOptions options;
  options.mode = Mode::latency;
  options.device = device;
  const auto sizes = Communicator::sizes(Shape{8, 4, hidden, 512}, node_sizes, options);
  EXPECT_TRUE(sizes.ok()) << sizes.status().to_string();
  std::size_t bytes = 0;
  for (const SizeEntry& entry : *sizes) {
    if (entry.name.find("other nodes") != std::string::npos) bytes += entry.bytes;
  }
  return bytes;
}

// By hand: rows of B = 5 banks of 512 tokens, of which 4096 elements more take 8192 bytes more. Besides rows there is what
// does not depend on their length, and the begin of a page, of a line, or of what is pinned at once.
TEST(Sizes, OtherNodesTake) {
  const auto rows = [](const std::vector<int>& node_sizes, Device device) {
    const std::size_t more =
        for_other_nodes(node_sizes, 4096 + 256, device) - for_other_nodes(node_sizes, 256, device);
    constexpr std::size_t kRows = std::size_t{8192} * 5 * 512;
    return (more + kRows / 4) / kRows;
  };
  EXPECT_EQ(for_other_nodes({4}, 256, Device::cpu), 0U);
  EXPECT_EQ(for_other_nodes({4}, 256, Device::cuda), 0U);
  // With a peer: what is answered, by rank and by node, and what lands of it.
  EXPECT_EQ(rows({1, 1}, Device::cpu), 3U);
  // Answers to two peers, one of which is served.
  EXPECT_EQ(rows({2, 2}, Device::cpu), 4U);
  // A lane to the peer and one from it: rows of dispatch and of combine in both.
  EXPECT_EQ(rows({1, 1}, Device::cuda), 4U);
  // To two peers, one of which passes rows of dispatch on, and from both.
  EXPECT_EQ(rows({2, 2}, Device::cuda), 6U);
  // The rank that is alone on its node serves both others: their rows come to it, and what it answers is summed for each.
  EXPECT_EQ(rows({2, 1}, Device::cpu), 6U);
}

// Bytes of this process that are mapped, from the kernel's own account: without the heap, which may give
// pages back meanwhile.
std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[heap]") != std::string::npos) continue;
    const std::size_t dash = line.find('-');
    bytes += std::stoul(line.substr(dash + 1), nullptr, 16) - std::stoul(line, nullptr, 16);
  }
  return bytes;
}

// A window and a heap are one mapping each. The window here is far larger than anything else that a
// communicator takes, so that what is mapped shows its size.
TEST(Sizes, AreWhatIsMapped) {
  if (sluice::testing::kAddressSanitizer || sluice::testing::kThreadSanitizer) {
    GTEST_SKIP() << "a sanitizer maps memory of its own";
  }
  const Shape shape{8, 2, 1024, 512};
  CommunicatorOptions options;
  options.mode = Mode::latency;
  options.registered_bytes = std::size_t{8} << 20;
  std::map<std::string, std::size_t> entries = account(shape, 1, options);
  const std::size_t expected = entries["window"] + entries["registered memory"];
  auto worlds = World::threads(1);
  ASSERT_TRUE(worlds.ok());
  const std::size_t before = mapped_bytes();
  std::optional<Communicator> communicator;
  {
    Result<Communicator> made = Communicator::create((*worlds)[0], shape, options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    communicator.emplace(std::move(made).value());
  }
  const std::size_t grown = mapped_bytes() - before;
  EXPECT_GE(grown, expected);
  EXPECT_LT(grown - expected, std::size_t{1} << 20) << "of " << expected;
  // And the handle is as large as said.
  EXPECT_EQ(communicator->handle_bytes(), entries["handle"]);
}

}  // namespace
}  // namespace sluice
