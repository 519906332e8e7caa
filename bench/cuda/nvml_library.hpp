// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace sluice::bench {

/// NVML, which every driver brings and `nvidia-smi topo -m` asks, found when the program runs. The functions are those of its
/// public C interface that tell how GPUs are connected, with the values of its enums (docs.nvidia.com/deploy/nvml-api).
struct NvmlLibrary {
  using Device = struct nvmlDevice_st*;
  static constexpr int kSuccess = 0;
  static constexpr unsigned kLinks = 18;   // NVML_NVLINK_MAX_LINKS
  static constexpr int kNvlinkStatus = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
  static constexpr int kStatusOk = 0;      // NVML_P2P_STATUS_OK
  static constexpr int kEnabled = 1;       // NVML_FEATURE_ENABLED
  static constexpr int kRemoteGpu = 0;     // NVML_NVLINK_DEVICE_TYPE_GPU

  /// nvmlPciInfo_t.
  struct Pci {
    char bus_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
  };

  int (*init)() = nullptr;
  int (*device_at)(const char* bus_id, Device* device) = nullptr;
  int (*common_ancestor)(Device from, Device to, int* level) = nullptr;
  int (*peer_status)(Device from, Device to, int index, int* status) = nullptr;
  int (*link_state)(Device device, unsigned link, int* state) = nullptr;
  int (*link_remote_type)(Device device, unsigned link, int* type) = nullptr;
  int (*link_remote_pci)(Device device, unsigned link, Pci* pci) = nullptr;

  /// Nothing: it is not there, is another library, or does not work. It stays loaded.
  static std::optional<NvmlLibrary> load(const char* path = "libnvidia-ml.so.1");

  /// How two GPUs, by PCI address, are connected, in the words of `nvidia-smi topo -m`: NV18 (so many NVLinks), PIX, PXB, PHB,
  /// NODE, SYS. Empty: it does not say.
  std::string way(const std::string& from, const std::string& to) const;

 private:
  int nvlinks(Device from, Device to) const;
};

}  // namespace sluice::bench
