// SPDX-License-Identifier: MIT
#pragma once

#include <cuda.h>

using PFN_cuGetErrorName_v6000 = CUresult (*)(CUresult, const char**);
using PFN_cuGetErrorString_v6000 = CUresult (*)(CUresult, const char**);
using PFN_cuCtxGetCurrent_v4000 = CUresult (*)(CUcontext*);
using PFN_cuCtxPushCurrent_v4000 = CUresult (*)(CUcontext);
using PFN_cuCtxPopCurrent_v4000 = CUresult (*)(CUcontext*);
using PFN_cuDevicePrimaryCtxRetain_v7000 = CUresult (*)(CUcontext*, CUdevice);
using PFN_cuDevicePrimaryCtxGetState_v7000 = CUresult (*)(CUdevice, unsigned*, int*);
using PFN_cuDeviceGet_v2000 = CUresult (*)(CUdevice*, int);
using PFN_cuDeviceGetAttribute_v2000 = CUresult (*)(int*, CUdevice_attribute, CUdevice);
using PFN_cuDeviceGetUuid_v11040 = CUresult (*)(CUuuid*, CUdevice);
using PFN_cuMemGetAllocationGranularity_v10020 = CUresult (*)(std::size_t*,
                                                              const CUmemAllocationProp*,
                                                              CUmemAllocationGranularity_flags);
using PFN_cuMemCreate_v10020 = CUresult (*)(CUmemGenericAllocationHandle*, std::size_t,
                                            const CUmemAllocationProp*, unsigned long long);
using PFN_cuMemRelease_v10020 = CUresult (*)(CUmemGenericAllocationHandle);
using PFN_cuMemAddressReserve_v10020 = CUresult (*)(CUdeviceptr*, std::size_t, std::size_t,
                                                    CUdeviceptr, unsigned long long);
using PFN_cuMemAddressFree_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemMap_v10020 = CUresult (*)(CUdeviceptr, std::size_t, std::size_t,
                                         CUmemGenericAllocationHandle, unsigned long long);
using PFN_cuMemUnmap_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemSetAccess_v10020 = CUresult (*)(CUdeviceptr, std::size_t, const CUmemAccessDesc*,
                                               std::size_t);
using PFN_cuMemExportToShareableHandle_v10020 = CUresult (*)(void*, CUmemGenericAllocationHandle,
                                                             CUmemAllocationHandleType,
                                                             unsigned long long);
using PFN_cuMemImportFromShareableHandle_v10020 = CUresult (*)(CUmemGenericAllocationHandle*, void*,
                                                               CUmemAllocationHandleType);
using PFN_cuMemGetHandleForAddressRange_v11070 = CUresult (*)(void*, CUdeviceptr, std::size_t,
                                                              CUmemRangeHandleType,
                                                              unsigned long long);
using PFN_cuFlushGPUDirectRDMAWrites_v11030 = CUresult (*)(CUflushGPUDirectRDMAWritesTarget,
                                                           CUflushGPUDirectRDMAWritesScope);
