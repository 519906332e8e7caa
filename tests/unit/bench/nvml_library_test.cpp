// SPDX-License-Identifier: MIT
#include "nvml_library.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

namespace sluice::bench {
namespace {

/// GPUs 0 and 1 at a switch, 2 and 3 linked to each other twice, and once to 4; 5 without links.
struct Link {
  int to;  // -1: a switch
};
constexpr int kGpus = 6;
constexpr std::array<std::array<Link, 3>, kGpus> kLinksOf = {{{{{-1}, {-1}, {-1}}},
                                                              {{{-1}, {-1}, {-1}}},
                                                              {{{3}, {4}, {3}}},
                                                              {{{2}, {2}, {99}}},
                                                              {{{2}, {99}, {99}}},
                                                              {{{99}, {99}, {99}}}}};
std::array<char, kGpus> places;

using Device = NvmlLibrary::Device;
Device device(int gpu) {
  return reinterpret_cast<Device>(&places[static_cast<std::size_t>(gpu)]);
}
int number(Device of) {
  return static_cast<int>(reinterpret_cast<char*>(of) - places.data());
}
std::string address(int gpu) {
  return "0000:0" + std::to_string(gpu) + ":00.0";
}
const Link* link_of(Device of, unsigned link) {
  const auto& links = kLinksOf[static_cast<std::size_t>(number(of))];
  return link < links.size() && links[link].to < kGpus ? &links[link] : nullptr;
}
bool linked(int a, int b) {
  const auto& links = kLinksOf[static_cast<std::size_t>(a)];
  return (a < 2 && b < 2) ||
         std::any_of(links.begin(), links.end(), [&](const Link& link) { return link.to == b; });
}

NvmlLibrary made_up() {
  NvmlLibrary nvml;
  nvml.device_at = [](const char* bus, Device* found) {
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      if (address(gpu) == bus) {
        *found = device(gpu);
        return 0;
      }
    }
    return 6;
  };
  nvml.common_ancestor = [](Device from, Device to, int* level) {
    *level = 10 * (1 + (number(from) + number(to)) % 5);
    return 0;
  };
  nvml.peer_status = [](Device from, Device to, int index, int* status) {
    EXPECT_EQ(index, NvmlLibrary::kNvlinkStatus);
    *status = linked(number(from), number(to)) ? NvmlLibrary::kStatusOk : 5;
    return 0;
  };
  nvml.link_state = [](Device of, unsigned link, int* state) {
    if (link_of(of, link) == nullptr) return 3;
    *state = NvmlLibrary::kEnabled;
    return 0;
  };
  nvml.link_remote_type = [](Device of, unsigned link, int* type) {
    *type = link_of(of, link)->to < 0 ? 2 : NvmlLibrary::kRemoteGpu;
    return 0;
  };
  nvml.link_remote_pci = [](Device of, unsigned link, NvmlLibrary::Pci* pci) {
    std::snprintf(pci->bus_id, sizeof(pci->bus_id), "%s", address(link_of(of, link)->to).c_str());
    return 0;
  };
  return nvml;
}

TEST(NvmlLibrary, CountsLinksToTheOtherOrToASwitch) {
  const NvmlLibrary nvml = made_up();
  EXPECT_EQ(nvml.way(address(0), address(1)), "NV3");
  EXPECT_EQ(nvml.way(address(2), address(3)), "NV2");
  EXPECT_EQ(nvml.way(address(2), address(4)), "NV1");
}

TEST(NvmlLibrary, NamesWaysOverPcieAsNvidiaSmiDoes) {
  const NvmlLibrary nvml = made_up();
  EXPECT_EQ(nvml.way(address(5), address(0)), "PIX");
  EXPECT_EQ(nvml.way(address(5), address(1)), "PXB");
  EXPECT_EQ(nvml.way(address(5), address(2)), "PHB");
  EXPECT_EQ(nvml.way(address(5), address(3)), "NODE");
  EXPECT_EQ(nvml.way(address(5), address(4)), "SYS");
  EXPECT_EQ(nvml.way(address(5), "0000:99:00.0"), "");
}

TEST(NvmlLibrary, IsNoOtherLibrary) {
  EXPECT_FALSE(NvmlLibrary::load("/nowhere/libnvidia-ml.so.1").has_value());
  EXPECT_FALSE(NvmlLibrary::load("libc.so.6").has_value());
}

}  // namespace
}  // namespace sluice::bench
