// SPDX-License-Identifier: MIT
//
// Which network cards a rank takes. The paths are those of a host with two sockets, on each of which two switches join two GPUs and
// two cards; the management's card hangs at a root.
#include "transport/libfabric/nics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
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

TEST(Nics, EveryGpuHasOneNearIt) {
  for (int rank = 0; rank < 8; ++rank) {
    const Indices rails = choose_nics(host(), {.near = gpu(rank), .place = rank});
    EXPECT_EQ(rails, Indices{static_cast<std::size_t>(rank) + 1}) << rank;
  }
}

// CUDA_VISIBLE_DEVICES may have them in any order.
TEST(Nics, WhereTheGpuIsDecidesNotTheRank) {
  std::set<std::size_t> taken;
  for (int rank = 0; rank < 8; ++rank) {
    const Indices rails = choose_nics(host(), {.near = gpu(7 - rank), .place = rank});
    ASSERT_EQ(rails.size(), 1U);
    EXPECT_EQ((rails[0] - 1) / 2, static_cast<std::size_t>(7 - rank) / 2) << rank;
    taken.insert(rails[0]);
  }
  EXPECT_EQ(taken.size(), 8U);
}

TEST(Nics, RailsAreOfSeveralNearOnes) {
  EXPECT_EQ(choose_nics(host(), {.near = gpu(5), .place = 0, .rails = 4}), (Indices{5, 6, 5, 6}));
}

TEST(Nics, WithoutAGpuRanksShareThemOut) {
  std::vector<Indices> seen;
  for (int rank = 0; rank < 3; ++rank) {
    seen.push_back(choose_nics(host(), {.place = rank, .rails = 3}));
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

TEST(Nics, ThoseThatOthersCannotReachOnlyIfThereAreNoOthers) {
  std::vector<Nic> nics{{"lo", "", 0, false}, {"eth0", "", 0, true}, {"eth1", "", 0, true}};
  EXPECT_EQ(choose_nics(nics, {.place = 1, .rails = 2}), (Indices{1, 2}));
  EXPECT_EQ(choose_nics(nics, {.one = true, .place = 1, .rails = 2}), (Indices{1, 1}));
  nics.resize(1);
  EXPECT_EQ(choose_nics(nics, {.one = true, .place = 5}), Indices{0});
  EXPECT_EQ(choose_nics({}, {}), Indices{});
}

// Near is how many bridges they share, not how many letters.
TEST(Nics, PathsAreComparedByTheirParts) {
  const std::vector<Nic> nics{{"a", "/sys/devices/pci0000:10/0000:11:00.0", 0},
                              {"b", "/sys/devices/pci0000:1/0000:2:00.0", 0}};
  EXPECT_EQ(choose_nics(nics, {.near = "/sys/devices/pci0000:1/0000:11:00.0"}), Indices{1});
}

TEST(Nics, ADeviceThatIsNotThereHasNoPath) {
  EXPECT_EQ(bus_path(""), "");
  EXPECT_EQ(bus_path("ffff:ff:1f.7"), "");
}

}  // namespace
}  // namespace sluice::transport
