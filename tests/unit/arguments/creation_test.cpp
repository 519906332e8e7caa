// SPDX-License-Identifier: MIT
//
// Every bad argument of create, sizes, allocate and deallocate.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "calls.hpp"

namespace sluice::arguments {
namespace {

struct BadCreation {
  const char* name;
  std::function<void(Shape&, CommunicatorOptions&)> spoil;
  std::vector<std::string> words;
};

const std::vector<BadCreation>& bad_creations() {
  static const std::vector<BadCreation> table = {
      {"experts 0", [](auto& s, auto&) { s.experts = 0; }, {"experts = 0", "1 to 4096"}},
      {"experts", [](auto& s, auto&) { s.experts = 4097; }, {"experts = 4097", "1 to 4096"}},
      {"top_k 0", [](auto& s, auto&) { s.top_k = 0; }, {"top_k = 0", "1 to 32"}},
      {"top_k", [](auto& s, auto&) { s.top_k = 33; }, {"top_k = 33", "1 to 32"}},
      {"hidden 0", [](auto& s, auto&) { s.hidden = 0; }, {"hidden = 0", "multiple of 16"}},
      {"hidden 24", [](auto& s, auto&) { s.hidden = 24; }, {"hidden = 24", "multiple of 16"}},
      {"hidden", [](auto& s, auto&) { s.hidden = 65552; }, {"hidden = 65552", "65536"}},
      {"hidden < 0", [](auto& s, auto&) { s.hidden = -16; }, {"hidden = -16"}},
      {"max_tokens 0", [](auto& s, auto&) { s.max_tokens = 0; }, {"max_tokens = 0", "1048576"}},
      {"max_tokens", [](auto& s, auto&) { s.max_tokens = 1048577; }, {"max_tokens = 1048577"}},
      {"mode", [](auto&, auto& o) { o.mode = static_cast<Mode>(9); }, {"mode = 9", "expected"}},
      {"layout", [](auto&, auto& o) { o.layout = static_cast<Layout>(9); }, {"layout = 9"}},
      {"reduce", [](auto&, auto& o) { o.reduce = static_cast<Reduce>(9); }, {"reduce = 9"}},
      {"y_memory", [](auto&, auto& o) { o.y_memory = static_cast<YMemory>(9); }, {"y_memory = 9"}},
      {"dispatch codec group",
       [](auto&, auto& o) {
         o.dispatch_codec = Codec{CodecKind::fp8, ScaleForm::f32, 48};
       },
       {"dispatch_codec", "group 48", "expected"}},
      {"dispatch scale form",
       [](auto&, auto& o) {
         o.dispatch_codec = Codec{CodecKind::fp8, static_cast<ScaleForm>(5), 128};
       },
       {"dispatch_codec", "scale form 5", "expected"}},
      {"combine codec",
       [](auto&, auto& o) { o.combine_codec = CodecKind::fp8; },
       {"combine_codec = fp8", "expected bf16"}},
      {"slot_tokens < 0", [](auto&, auto& o) { o.slot_tokens = -1; }, {"slot_tokens = -1"}},
      {"slot_tokens",
       [](auto&, auto& o) { o.slot_tokens = 9; },
       {"slot_tokens = 9", "max_tokens = 8"}},
      {"in_flight 0", [](auto&, auto& o) { o.in_flight = 0; }, {"in_flight = 0", "1 to 4"}},
      {"in_flight", [](auto&, auto& o) { o.in_flight = 5; }, {"in_flight = 5", "1 to 4"}},
      {"single",
       [](auto&, auto& o) { o.reduce = Reduce::single; },
       {"reduce = single", "permit_single"}},
      {"map size",
       [](auto&, auto& o) {
         o.expert_to_rank = {0, 0, 0};
       },
       {"expert_to_rank has 3 entries", "experts = 4"}},
      {"map rank",
       [](auto&, auto& o) {
         o.expert_to_rank = {0, 0, 1, 0};
       },
       {"expert_to_rank[2] = 1", "0 to 0"}},
  };
  return table;
}

TEST(CreationArguments, OfCreate) {
  auto worlds = World::threads(1);
  ASSERT_TRUE(worlds.ok());
  World& world = (*worlds)[0];
  for (const BadCreation& bad : bad_creations()) {
    Shape shape = Fixture::shape();
    CommunicatorOptions options;
    bad.spoil(shape, options);
    const Result<Communicator> made = Communicator::create(world, shape, options);
    ASSERT_FALSE(made.ok()) << bad.name;
    std::vector<std::string> words = bad.words;
    words.push_back("rank 0: ");  // Who was wrong: all ranks get this text.
    expect_status(bad.name, made.status(), StatusCode::invalid_argument, words);
    // The world works afterwards.
    EXPECT_TRUE(Communicator::create(world, Fixture::shape()).ok()) << "after " << bad.name;
  }
}

TEST(CreationArguments, OfSizes) {
  for (const BadCreation& bad : bad_creations()) {
    Shape shape = Fixture::shape();
    CommunicatorOptions options;
    bad.spoil(shape, options);
    const auto sizes = Communicator::sizes(shape, 1, options);
    ASSERT_FALSE(sizes.ok()) << bad.name;
    expect_status(bad.name, sizes.status(), StatusCode::invalid_argument, bad.words);
  }
  expect_status("ranks 0", Communicator::sizes(Fixture::shape(), 0).status(),
                StatusCode::invalid_argument, {"0 ranks", "1 to 256"});
  expect_status("ranks", Communicator::sizes(Fixture::shape(), 257).status(),
                StatusCode::invalid_argument, {"257 ranks", "1 to 256"});
  expect_status("no node", Communicator::sizes(Fixture::shape(), std::vector<int>{}).status(),
                StatusCode::invalid_argument, {"0 ranks", "1 to 256"});
  expect_status("an empty node", Communicator::sizes(Fixture::shape(), {2, 0}).status(),
                StatusCode::invalid_argument, {"a node of 0 ranks", "1 to 256"});
  expect_status("nodes", Communicator::sizes(Fixture::shape(), {200, 57}).status(),
                StatusCode::invalid_argument, {"257 ranks", "1 to 256"});
}

// Needs no GPU.
TEST(CreationArguments, SizesOnGpus) {
  CommunicatorOptions options;
  options.device = Device::cuda;
  const auto sizes = Communicator::sizes(Fixture::shape(), 4, options);
  ASSERT_TRUE(sizes.ok()) << sizes.status().to_string();
  EXPECT_EQ(sizes->front().name, "window");
  EXPECT_EQ(sizes->back().name, "handle");
  for (const SizeEntry& entry : *sizes) EXPECT_GT(entry.bytes, 0U) << entry.name;
  options.mode = Mode::throughput;
  options.registered_bytes = 1;
  const auto throughput = Communicator::sizes(Fixture::shape(), 4, options);
  ASSERT_TRUE(throughput.ok()) << throughput.status().to_string();
  EXPECT_EQ(throughput->size(), sizes->size() + 2);
  EXPECT_EQ(throughput->back().name, "handle");
  for (const SizeEntry& entry : *throughput) EXPECT_GT(entry.bytes, 0U) << entry.name;
  // What create refuses has no size.
  expect_status("ranks", Communicator::sizes(Fixture::shape(), {9, 8}, options).status(),
                StatusCode::unimplemented, {"17 ranks", "at most 16"});
  options.permit_single = true;
  expect_status("lane", Communicator::sizes({256, 8, 7168, 16384}, {1, 1}, options).status(),
                StatusCode::unimplemented, {"4 GiB"});
}

// 256 ranks of 2^20 tokens with 32 routes would need 33 bits for a row.
TEST(CreationArguments, RowNumbersFit) {
  CommunicatorOptions options;
  options.mode = Mode::throughput;
  const auto sizes = Communicator::sizes({4096, 32, 16, 1 << 20}, 256, options);
  expect_status("rows", sizes.status(), StatusCode::invalid_argument,
                {"rows (ranks x tokens x routes)", "expected at most 2147483647"});
}

TEST(CreationArguments, RegisteredMemory) {
  Fixture fixture;
  Communicator& communicator = fixture.communicator();
  expect_status("too much", communicator.allocate(1 << 20).status(), StatusCode::out_of_memory,
                {"allocate(1048576 bytes)", "largest free block", "registered_bytes"});
  const Result<void*> memory = communicator.allocate(1000);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % 64, 0U);
  int elsewhere = 0;
  expect_status("elsewhere", communicator.deallocate(&elsewhere), StatusCode::invalid_argument,
                {"deallocate(0x", "expected a pointer from this communicator's allocate"});
  expect_status("inside", communicator.deallocate(static_cast<std::byte*>(*memory) + 64),
                StatusCode::invalid_argument, {"expected a pointer"});
  EXPECT_TRUE(communicator.deallocate(*memory).ok());
  expect_status("twice", communicator.deallocate(*memory), StatusCode::invalid_argument,
                {"expected a pointer"});
  expect_status("null", communicator.deallocate(nullptr), StatusCode::invalid_argument,
                {"expected a pointer"});
  EXPECT_EQ(fixture.good_round(), "");
}

TEST(CreationArguments, ProfilePath) {
  Fixture fixture;
  fixture.communicator().start_profile(16);
  const Status written = fixture.communicator().write_profile("/no/such/folder/profile.json");
  EXPECT_FALSE(written.ok());
  EXPECT_NE(written.message().find("/no/such/folder/profile.json"), std::string::npos)
      << written.message();
}

TEST(CreationArguments, ProfileOfNoEventsIsTheEndOfIt) {
  Fixture fixture;
  const std::string path = ::testing::TempDir() + "sluice-profile-" + std::to_string(::getpid());
  const auto events = [&] {
    EXPECT_TRUE(fixture.communicator().write_profile(path).ok());
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    int found = 0;
    for (std::size_t at = 0; (at = text.find("\"epoch\"", at)) != std::string::npos; ++at) ++found;
    return found;
  };
  fixture.communicator().start_profile(1000);
  EXPECT_EQ(fixture.good_round(), "");
  const int first = events();
  EXPECT_GT(first, 0);
  fixture.communicator().start_profile(2);  // Fewer than before.
  EXPECT_EQ(fixture.good_round(), "");
  EXPECT_EQ(events(), 2);
  fixture.communicator().start_profile(0);
  EXPECT_EQ(fixture.good_round(), "");
  EXPECT_EQ(events(), 0);
  EXPECT_EQ(std::remove(path.c_str()), 0);
}

}  // namespace
}  // namespace sluice::arguments
