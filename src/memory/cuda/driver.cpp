// SPDX-License-Identifier: MIT
#include "memory/cuda/driver.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace sluice::memory {
namespace {

// The versions are those of the functions' types.
constexpr unsigned kVersionOfMemory = 10020;

class Lookup {
 public:
  template <typename Function>
  void find(Function& function, const char* name, unsigned version) {
    if (!status_.ok()) return;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &answer);
    if (error == cudaSuccess && answer == cudaDriverEntryPointSuccess && found != nullptr) {
      function = reinterpret_cast<Function>(found);
      return;
    }
    (void)cudaGetLastError();
    status_ = Status(StatusCode::unavailable,
                     std::string("CUDA's driver has no ") + name +
                         (error != cudaSuccess ? std::string(": ") + cudaGetErrorName(error) : ""));
  }
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

struct Found {
  Driver driver;
  Status status;
};

Found find_all() {
  Found found;
  Driver& driver = found.driver;
  Lookup lookup;
  lookup.find(driver.error_name, "cuGetErrorName", 6000);
  lookup.find(driver.error_string, "cuGetErrorString", 6000);
  lookup.find(driver.context_get_current, "cuCtxGetCurrent", 4000);
  lookup.find(driver.context_push, "cuCtxPushCurrent", 4000);
  lookup.find(driver.context_pop, "cuCtxPopCurrent", 4000);
  lookup.find(driver.primary_context_retain, "cuDevicePrimaryCtxRetain", 7000);
  lookup.find(driver.device_get, "cuDeviceGet", 2000);
  lookup.find(driver.device_get_attribute, "cuDeviceGetAttribute", 2000);
  lookup.find(driver.device_get_uuid, "cuDeviceGetUuid", 11040);
  lookup.find(driver.granularity, "cuMemGetAllocationGranularity", kVersionOfMemory);
  lookup.find(driver.create, "cuMemCreate", kVersionOfMemory);
  lookup.find(driver.release, "cuMemRelease", kVersionOfMemory);
  lookup.find(driver.address_reserve, "cuMemAddressReserve", kVersionOfMemory);
  lookup.find(driver.address_free, "cuMemAddressFree", kVersionOfMemory);
  lookup.find(driver.map, "cuMemMap", kVersionOfMemory);
  lookup.find(driver.unmap, "cuMemUnmap", kVersionOfMemory);
  lookup.find(driver.set_access, "cuMemSetAccess", kVersionOfMemory);
  lookup.find(driver.export_handle, "cuMemExportToShareableHandle", kVersionOfMemory);
  lookup.find(driver.import_handle, "cuMemImportFromShareableHandle", kVersionOfMemory);
  lookup.find(driver.handle_for_range, "cuMemGetHandleForAddressRange", 11070);
  lookup.find(driver.flush_network_writes, "cuFlushGPUDirectRDMAWrites", 11030);
  found.status = lookup.status();
  return found;
}

}  // namespace

Result<const Driver*> Driver::get() {
  static const Found found = find_all();
  if (!found.status.ok()) return found.status;
  return &found.driver;
}

}  // namespace sluice::memory
