// SPDX-License-Identifier: MIT
//
// The driver of the simulated GPU: memory that processes hand each other is a file in memory.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "engine/cuda/kernel_mutants.cuh"
#include "gpu_simulator/device_list.hpp"
#include "ranges.hpp"

namespace {

using gpu_simulator::BlockHandle;
using gpu_simulator::kTotalBytes;
using gpu_simulator::Ranges;

constexpr std::size_t kGranularity = std::size_t{64} << 10;

struct Allocation {
  int file;
  std::size_t bytes;
  CUmemAllocationHandleType type;
  bool for_network;
};

Allocation* allocation_of(CUmemGenericAllocationHandle handle) {
  return reinterpret_cast<Allocation*>(handle);
}
void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

CUresult error_name(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult error, const char** words) {
  *words = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
// A context is its GPU's number, and one.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}
CUresult context_get_current(CUcontext* context) {
  const auto& contexts = gpu_simulator::contexts_of_thread();
  *context = contexts.empty() ? nullptr : context_of(contexts.back());
  return CUDA_SUCCESS;
}
CUresult context_push(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto device = static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
  gpu_simulator::contexts_of_thread().push_back(device);
  return CUDA_SUCCESS;
}
CUresult context_pop(CUcontext* context) {
  auto& contexts = gpu_simulator::contexts_of_thread();
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = context_of(contexts.back());
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult primary_context_retain(CUcontext* context, CUdevice device) {
  gpu_simulator::make_context(device);
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult primary_context_state(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = gpu_simulator::has_context(device) ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= gpu_simulator::kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_get_attribute(int* value, CUdevice_attribute /*attribute*/, CUdevice /*device*/) {
  *value = 1;
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp* /*properties*/,
                     CUmemAllocationGranularity_flags /*flags*/) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult handle_of(int file, std::size_t bytes, CUmemAllocationHandleType type, bool for_network,
                   CUmemGenericAllocationHandle* handle) {
  auto* const allocation = new (std::nothrow) Allocation{file, bytes, type, for_network};
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(allocation);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  if (bytes > kTotalBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // As on machines without IMEX.
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC &&
      std::getenv("SLUICE_SIMULATOR_NO_FABRIC") != nullptr) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const int file = ::memfd_create("sluice-simulated-gpu", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    (void)::close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return handle_of(file, bytes, properties->requestedHandleTypes,
                   properties->allocFlags.gpuDirectRDMACapable != 0, handle);
}
CUresult release(CUmemGenericAllocationHandle handle) {
  Allocation* const allocation = allocation_of(handle);
  (void)::close(allocation->file);
  delete allocation;
  return CUDA_SUCCESS;
}
CUresult address_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t /*alignment*/,
                         CUdeviceptr /*wanted*/, unsigned long long /*flags*/) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr address, std::size_t bytes) {
  return ::munmap(pointer_of(address), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long /*flags*/) {
  const Allocation* const allocation = allocation_of(handle);
  if (offset + bytes > allocation->bytes) return CUDA_ERROR_INVALID_VALUE;
  void* const at = ::mmap(pointer_of(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                          allocation->file, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  Ranges::instance().insert(at, bytes, cudaMemoryTypeDevice,
                            allocation->for_network ? allocation->file : -1);
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  Ranges::instance().erase(pointer_of(address));
  gpu_simulator::NetworkWrites::instance().forget(pointer_of(address), bytes);
  void* const at = ::mmap(pointer_of(address), bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* /*access*/,
                    std::size_t /*count*/) {
  return ::mprotect(pointer_of(address), bytes, PROT_READ | PROT_WRITE) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}
CUresult export_handle(void* to, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long /*flags*/) {
  const Allocation& allocation = *allocation_of(handle);
  if (type != allocation.type) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    const BlockHandle what{::getpid(), allocation.file, allocation.bytes};
    std::memcpy(to, &what, sizeof(what));
    return CUDA_SUCCESS;
  }
  const int copy = ::dup(allocation.file);
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(to) = copy;
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* from,
                       CUmemAllocationHandleType type) {
  int copy = -1;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    BlockHandle what{};
    std::memcpy(&what, from, sizeof(what));
    copy = gpu_simulator::open_block(what);
  } else {
    copy = ::dup(static_cast<int>(reinterpret_cast<std::uintptr_t>(from)));
  }
  struct stat about {};
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  if (::fstat(copy, &about) != 0) {
    (void)::close(copy);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return handle_of(copy, static_cast<std::size_t>(about.st_size), type, false, handle);
}
CUresult handle_for_range(void* to, CUdeviceptr address, std::size_t /*bytes*/,
                          CUmemRangeHandleType /*type*/, unsigned long long /*flags*/) {
  const int file = Ranges::instance().file_of(pointer_of(address));
  const int copy = file < 0 ? -1 : ::dup(file);
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(to) = copy;
  return CUDA_SUCCESS;
}
// Of the machine's simulated GPUs.
CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
  *uuid = {};
  uuid->bytes[0] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}
CUresult flush_network_writes(CUflushGPUDirectRDMAWritesTarget /*target*/,
                              CUflushGPUDirectRDMAWritesScope /*scope*/) {
  if (sluice::engine::cuda::mutant(
          sluice::engine::cuda::KernelMutant::network_writes_not_awaited)) {
    return CUDA_SUCCESS;
  }
  gpu_simulator::NetworkWrites::instance().flush(gpu_simulator::current_device());
  return CUDA_SUCCESS;
}

struct Entry {
  std::string_view name;
  void* function;
};
const Entry kEntries[] = {
    {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
    {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
    {"cuCtxGetCurrent", reinterpret_cast<void*>(context_get_current)},
    {"cuCtxPushCurrent", reinterpret_cast<void*>(context_push)},
    {"cuCtxPopCurrent", reinterpret_cast<void*>(context_pop)},
    {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(primary_context_retain)},
    {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(primary_context_state)},
    {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_get_attribute)},
    {"cuDeviceGetUuid", reinterpret_cast<void*>(device_get_uuid)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
    {"cuMemCreate", reinterpret_cast<void*>(create)},
    {"cuMemRelease", reinterpret_cast<void*>(release)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
    {"cuMemMap", reinterpret_cast<void*>(map)},
    {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
    {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
    {"cuMemExportToShareableHandle", reinterpret_cast<void*>(export_handle)},
    {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(import_handle)},
    {"cuMemGetHandleForAddressRange", reinterpret_cast<void*>(handle_for_range)},
    {"cuFlushGPUDirectRDMAWrites", reinterpret_cast<void*>(flush_network_writes)}};

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* answer) {
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    *function = entry.function;
    *answer = cudaDriverEntryPointSuccess;
    return cudaSuccess;
  }
  *answer = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
