// SPDX-License-Identifier: MIT
//
// Which network cards a rank takes. The paths are those of a host with two sockets, on each of which two switches join two GPUs and
// two cards; the management's card hangs at a root.
#include "transport/libfabric/nics.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace sluice::transport {
namespace {

using Indices = std::vector<std::size_t>;

constexpr std::uint64_t kFast = 400'000'000'000;
constexpr std::uint64_t kSlow = 25'000'000'000;

std::string bridge(int number) {
  return "/sys/devices/pci0000:" + std::to_string(number / 2) + "0/0000:" + std::to_string(number) +
         "0:01.0/0000:" + std::to_string(number) + "1:00.0";
}
std::string gpu(int number) {
  return bridge(number / 2) + "/0000:" + std::to_string(number / 2) + "2:0" +
         std::to_string(number % 2) + ".0/0000:1" + std::to_string(number) + ":00.0";
}
// 0: of the management; 1 to 8: those beside GPUs 0 to 7.
std::vector<Nic> host() {
  std::vector<Nic> nics{{"mlx5_bond_0", "/sys/devices/pci0000:90/0000:90:00.0", kSlow}};
  for (int number = 0; number < 8; ++number) {
    const std::string at = bridge(number / 2) + "/0000:" + std::to_string(number / 2) + "2:1" +
                           std::to_string(number % 2) + ".0/0000:2" + std::to_string(number) +
                           ":00.0";
    nics.push_back({"mlx5_" + std::to_string(number), at, kFast});
  }
  return nics;
}

// What each rank of a node takes, whose GPUs are these, in the order of the ranks.
std::vector<Indices> taken_by(const std::vector<int>& gpus, int rails = 1) {
  std::vector<Indices> taken;
  NicWishes wishes;
  wishes.rails = rails;
  for (const int number : gpus) {
    wishes.near = gpu(number);
    taken.push_back(choose_nics(host(), wishes));
    wishes.before.push_back(wishes.near);
  }
  return taken;
}

// CUDA_VISIBLE_DEVICES may have them in any order.
TEST(Nics, EveryGpuHasOneOfItsOwnNearIt) {
  EXPECT_EQ(taken_by({0, 1, 2, 3, 4, 5, 6, 7}),
            (std::vector<Indices>{{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}));
  EXPECT_EQ(taken_by({7, 0, 6, 3, 1, 2, 5, 4}),
            (std::vector<Indices>{{7}, {1}, {8}, {3}, {2}, {4}, {5}, {6}}));
}

TEST(Nics, MoreRanksThanCardsBeginAgain) {
  EXPECT_EQ(taken_by({4, 4, 5}), (std::vector<Indices>{{5}, {6}, {5}}));
}

TEST(Nics, RailsAreOfSeveralNearOnes) {
  EXPECT_EQ(taken_by({5}, 4), (std::vector<Indices>{{5, 6, 5, 6}}));
  EXPECT_EQ(taken_by({2, 3}, 2), (std::vector<Indices>{{3, 4}, {3, 4}}));
}

TEST(Nics, WithoutAGpuRanksShareThemOut) {
  std::vector<Indices> seen;
  NicWishes wishes;
  wishes.rails = 3;
  for (int rank = 0; rank < 3; ++rank) {
    seen.push_back(choose_nics(host(), wishes));
    wishes.before.emplace_back();
  }
  EXPECT_EQ(seen, (std::vector<Indices>{{1, 2, 3}, {4, 5, 6}, {7, 8, 1}}));
}

TEST(Nics, ThoseThatAreNamedAndNoOthers) {
  const std::vector<std::string> names{"mlx5_7", "mlx5_bond_0"};
  EXPECT_EQ(choose_nics(host(), {.names = names, .rails = 3}), (Indices{8, 0, 8}));
  EXPECT_EQ(choose_nics(host(), {.names = names, .one = true, .rails = 2}), (Indices{8, 0}));
  EXPECT_EQ(choose_nics(host(), {.names = names, .near = gpu(6)}), Indices{8});
  EXPECT_EQ(choose_nics(host(), {.names = {"mlx5_7", "mlx5_8"}}), Indices{});
}

// The one whose speed is known need not be the fastest.
TEST(Nics, SpeedsCountIfAllAreKnown) {
  const std::vector<Nic> nics{{"a", "", 0}, {"b", "", kSlow}, {"c", "", kFast}};
  EXPECT_EQ(choose_nics(nics, {.rails = 3}), (Indices{0, 1, 2}));
  const std::vector<Nic> down{{"a", "", 0, false}, {"b", "", kSlow}, {"c", "", kFast}};
  EXPECT_EQ(choose_nics(down, {.rails = 2}), (Indices{2, 2}));
}

// As the kernel shows a card of InfiniBand.
TEST(Nics, WhatTheProviderDoesNotSayTheSystemDoes) {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / ("sluice_nics_" + std::to_string(::getpid()));
  const std::filesystem::path device = root / "devices/pci0000:10/0000:11:00.0";
  const std::filesystem::path card = root / "infiniband/mlx5_0";
  std::filesystem::create_directories(device);
  std::filesystem::create_directories(card / "ports/1");
  std::filesystem::create_symlink(device, card / "device");
  std::ofstream(card / "ports/1/rate") << "200 Gb/sec (4X HDR)\n";
  const std::string folder = (root / "infiniband").string();
  const std::string path = std::filesystem::canonical(device).string();

  const Nic found = completed({"mlx5_0"}, folder);
  EXPECT_EQ(found.speed, 200'000'000'000U);
  EXPECT_EQ(found.path, path);
  const Nic said = completed({"mlx5_0", "/sys/devices/other", kSlow}, folder);
  EXPECT_EQ(said.speed, kSlow);
  EXPECT_EQ(said.path, "/sys/devices/other");
  std::ofstream(card / "ports/1/rate") << "unknown\n";
  EXPECT_EQ(completed({"mlx5_0"}, folder).speed, 0U);
  const Nic other = completed({"eth0"}, folder);
  EXPECT_EQ(other.speed, 0U);
  EXPECT_EQ(other.path, "");
  std::filesystem::remove_all(root);
}

TEST(Nics, ThoseThatOthersCannotReachOnlyIfThereAreNoOthers) {
  std::vector<Nic> nics{{"lo", "", 0, false}, {"eth0", "", 0, true}, {"eth1", "", 0, true}};
  EXPECT_EQ(choose_nics(nics, {.before = {""}, .rails = 2}), (Indices{1, 2}));
  EXPECT_EQ(choose_nics(nics, {.one = true, .before = {""}, .rails = 2}), (Indices{1, 1}));
  nics.resize(1);
  EXPECT_EQ(choose_nics(nics, {.one = true, .before = {"", ""}}), Indices{0});
  EXPECT_EQ(choose_nics({}, {}), Indices{});
}

// Near is how many bridges they share, not how many letters.
TEST(Nics, PathsAreComparedByTheirParts) {
  const std::vector<Nic> nics{{"a", "/sys/devices/pci0000:11/0000:12:00.0", 0},
                              {"b", "/sys/devices/pci0000:20/0000:21:00.0", 0}};
  EXPECT_EQ(choose_nics(nics, {.near = "/sys/devices/pci0000:10/0000:11:00.0", .rails = 2}),
            (Indices{0, 1}));
  EXPECT_EQ(choose_nics(nics, {.near = "/sys/devices/pci0000:20/0000:22:00.0", .rails = 2}),
            (Indices{1, 1}));
}

TEST(Nics, WhoIsNearToNothingMindsNoPath) {
  const std::vector<Nic> nics{{"a", "/sys/devices/pci0000:10/0000:11:00.0", 0}, {"b", "", 0}};
  EXPECT_EQ(choose_nics(nics, {.names = {"b", "a"}, .rails = 2}), (Indices{1, 0}));
}

TEST(Nics, ADeviceThatIsNotThereHasNoPath) {
  EXPECT_EQ(bus_path(""), "");
  EXPECT_EQ(bus_path("ffff:ff:1f.7"), "");
}

TEST(Nics, ADeviceThatIsThereHasOne) {
  const std::filesystem::path devices = "/sys/bus/pci/devices";
  std::error_code error;
  const auto first = std::filesystem::directory_iterator(devices, error);
  if (error || first == std::filesystem::directory_iterator()) GTEST_SKIP() << "no PCI";
  std::string address = first->path().filename().string();
  std::ranges::transform(address, address.begin(), [](unsigned char letter) {
    return static_cast<char>(std::toupper(letter));  // As CUDA writes it.
  });
  EXPECT_EQ(bus_path(address), std::filesystem::canonical(first->path()).string());
}

}  // namespace
}  // namespace sluice::transport
