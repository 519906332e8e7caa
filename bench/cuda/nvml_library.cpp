// SPDX-License-Identifier: MIT
#include "nvml_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "library_functions.hpp"

namespace sluice::bench {

std::optional<NvmlLibrary> NvmlLibrary::load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  NvmlLibrary nvml;
  find_function(library, "nvmlInit_v2", nvml.init);
  find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.device_at);
  find_function(library, "nvmlDeviceGetTopologyCommonAncestor", nvml.common_ancestor);
  find_function(library, "nvmlDeviceGetP2PStatus", nvml.peer_status);
  find_function(library, "nvmlDeviceGetNvLinkState", nvml.link_state);
  find_function(library, "nvmlDeviceGetNvLinkRemoteDeviceType", nvml.link_remote_type);
  find_function(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.link_remote_pci);
  const bool whole = nvml.init && nvml.device_at && nvml.common_ancestor && nvml.peer_status &&
                     nvml.link_state && nvml.link_remote_type && nvml.link_remote_pci;
  if (!whole || nvml.init() != kSuccess) return std::nullopt;
  return nvml;
}

// Those that end at the other one, or at what is no GPU: a switch, to which the other is linked, too.
int NvmlLibrary::nvlinks(Device from, Device to) const {
  int count = 0;
  for (unsigned link = 0; link < kLinks; ++link) {
    int state = 0;
    if (link_state(from, link, &state) != kSuccess || state != kEnabled) continue;
    int type = 0;
    Pci pci{};
    Device remote = nullptr;
    const bool to_a_gpu = link_remote_type(from, link, &type) == kSuccess && type == kRemoteGpu;
    if (to_a_gpu && (link_remote_pci(from, link, &pci) != kSuccess ||
                     device_at(pci.bus_id, &remote) != kSuccess || remote != to)) {
      continue;
    }
    ++count;
  }
  return count;
}

std::string NvmlLibrary::way(const std::string& from, const std::string& to) const {
  Device a = nullptr;
  Device b = nullptr;
  if (device_at(from.c_str(), &a) != kSuccess || device_at(to.c_str(), &b) != kSuccess) return {};
  int status = -1;
  if (peer_status(a, b, kNvlinkStatus, &status) == kSuccess && status == kStatusOk) {
    const int links = nvlinks(a, b);
    if (links > 0) return fmt::format("NV{}", links);
  }
  int level = -1;
  if (common_ancestor(a, b, &level) != kSuccess) return {};
  switch (level) {
    case 10: return "PIX";   // NVML_TOPOLOGY_SINGLE: one PCIe switch
    case 20: return "PXB";   // MULTIPLE: several
    case 30: return "PHB";   // HOSTBRIDGE
    case 40: return "NODE";  // NODE: host bridges of one NUMA node
    case 50: return "SYS";   // SYSTEM
    default: return {};
  }
}

}  // namespace sluice::bench
