// SPDX-License-Identifier: MIT
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "sluice/status.hpp"

namespace sluice::memory {

/// Functions of CUDA's driver, looked up at run time: the library loads where there is no driver.
struct Driver {
  PFN_cuGetErrorName_v6000 error_name = nullptr;
  PFN_cuGetErrorString_v6000 error_string = nullptr;
  PFN_cuCtxGetCurrent_v4000 context_get_current = nullptr;
  PFN_cuCtxPushCurrent_v4000 context_push = nullptr;
  PFN_cuCtxPopCurrent_v4000 context_pop = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_context_retain = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuDeviceGetUuid_v11040 device_get_uuid = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressReserve_v10020 address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 address_free = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
  PFN_cuMemGetHandleForAddressRange_v11070 handle_for_range = nullptr;
  PFN_cuFlushGPUDirectRDMAWrites_v11030 flush_network_writes = nullptr;

  /// Looked up once in a process; `unavailable` where there is no driver, or too old a one.
  static Result<const Driver*> get();
};

}  // namespace sluice::memory
