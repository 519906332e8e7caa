// SPDX-License-Identifier: MIT
//
// Memory and devices of the simulated GPU. A GPU's memory is the host's, but for what CUDA says of it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "gpu_simulator/device_list.hpp"
#include "streams.hpp"

namespace {

using gpu_simulator::stream_of;

constexpr std::size_t kTotalBytes = std::size_t{16} << 30;
constexpr std::size_t kGranularity = std::size_t{64} << 10;
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kFilledBytes = std::size_t{4} << 20;

thread_local int device_of_thread = 0;

/// Memory that CUDA knows. Never destroyed.
class Ranges {
 public:
  static Ranges& instance() {
    static Ranges* const ranges = new Ranges;
    return *ranges;
  }
  void insert(const void* at, std::size_t bytes, cudaMemoryType type) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[address(at)] = {bytes, type, device_of_thread};
  }
  void erase(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(address(at));
  }
  cudaPointerAttributes find(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto range = ranges_.upper_bound(address(at));
    if (range == ranges_.begin()) return {cudaMemoryTypeUnregistered, -1, nullptr};
    --range;
    const Range& found = range->second;
    if (address(at) - range->first >= found.bytes) return {cudaMemoryTypeUnregistered, -1, nullptr};
    return {found.type, found.device, const_cast<void*>(at)};
  }

 private:
  struct Range {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
  };
  static std::uintptr_t address(const void* at) noexcept {
    return reinterpret_cast<std::uintptr_t>(at);
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_;
};

cudaError_t take(void** memory, std::size_t bytes, cudaMemoryType type) {
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  // As undefined as a GPU's, but for what would take long.
  std::memset(*memory, 0xA5, std::min(bytes, kFilledBytes));
  Ranges::instance().insert(*memory, bytes, type);
  return cudaSuccess;
}
void give(void* memory) {
  Ranges::instance().erase(memory);
  std::free(memory);
}

}  // namespace

int gpu_simulator::current_device() noexcept {
  return device_of_thread;
}
std::uint64_t gpu_simulator::host_nanoseconds() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError of the simulated GPU";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "refused by the simulated GPU";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpu_simulator::kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_simulator::kDevices) return cudaErrorInvalidDevice;
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = gpu_simulator::kProcessors; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"simulated GPU", std::size_t{1} << 32, gpu_simulator::kProcessors, 9, 0};
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* reachable, int device, int peer) {
  *reachable = device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  std::snprintf(name, static_cast<std::size_t>(length), "simulated:%02d", device);
  return cudaSuccess;
}

// Whole blocks of memory, which processes can hand each other, are files in memory.
namespace {

constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

struct Block {
  int file;
  std::size_t bytes;
};

/// By address. Never destroyed.
struct Blocks {
  static Blocks& instance() {
    static Blocks* const blocks = new Blocks;
    return *blocks;
  }
  std::mutex mutex;
  std::map<void*, Block> taken;
  struct Opened {
    int count;
    std::size_t bytes;
    pid_t owner;
    int file;
  };
  std::map<void*, Opened> opened;
};

/// What an IPC handle says.
struct BlockHandle {
  pid_t owner;
  int file;
  std::size_t bytes;
};
static_assert(sizeof(BlockHandle) <= sizeof(cudaIpcMemHandle_t));

cudaError_t take_block(void** memory, std::size_t bytes) {
  if (bytes > kTotalBytes) return cudaErrorMemoryAllocation;
  const int file = ::memfd_create("sluice-simulated-gpu", MFD_CLOEXEC);
  if (file < 0) return cudaErrorMemoryAllocation;
  void* at = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (at == MAP_FAILED) {
    (void)::close(file);
    return cudaErrorMemoryAllocation;
  }
  std::memset(at, 0xA5, std::min(bytes, kFilledBytes));
  Ranges::instance().insert(at, bytes, cudaMemoryTypeDevice);
  Blocks& blocks = Blocks::instance();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.taken[at] = {file, bytes};
  *memory = at;
  return cudaSuccess;
}

/// False: this is no block.
bool give_block(void* memory) {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.taken.find(memory);
  if (found == blocks.taken.end()) return false;
  Ranges::instance().erase(memory);
  (void)::munmap(memory, found->second.bytes);
  (void)::close(found->second.file);
  blocks.taken.erase(found);
  return true;
}

}  // namespace

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return bytes != 0 && bytes % kBlockBytes == 0 ? take_block(memory, bytes)
                                                : take(memory, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* memory) {
  const cudaError_t error = cudaDeviceSynchronize();
  if (!give_block(memory)) give(memory);
  return error;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.taken.find(memory);
  if (found == blocks.taken.end()) return cudaErrorInvalidValue;
  const BlockHandle what{::getpid(), found->second.file, found->second.bytes};
  std::memcpy(handle, &what, sizeof(what));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned /*flags*/) {
  BlockHandle what{};
  std::memcpy(&what, &handle, sizeof(what));
  if (what.owner == ::getpid()) return cudaErrorInvalidValue;  // As CUDA has it.
  Blocks& blocks = Blocks::instance();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  for (auto& [at, opened] : blocks.opened) {
    if (opened.owner != what.owner || opened.file != what.file) continue;
    ++opened.count;
    *memory = at;
    return cudaSuccess;
  }
  const std::string name =
      "/proc/" + std::to_string(what.owner) + "/fd/" + std::to_string(what.file);
  const int file = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorInvalidValue;
  void* const at = ::mmap(nullptr, what.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  (void)::close(file);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  Ranges::instance().insert(at, what.bytes, cudaMemoryTypeDevice);
  blocks.opened[at] = {1, what.bytes, what.owner, what.file};
  *memory = at;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto found = blocks.opened.find(memory);
  if (found == blocks.opened.end()) return cudaErrorInvalidValue;
  if (--found->second.count > 0) return cudaSuccess;
  Ranges::instance().erase(memory);
  (void)::munmap(memory, found->second.bytes);
  blocks.opened.erase(found);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned /*flags*/) {
  static std::mutex mutex;
  static bool enabled[gpu_simulator::kDevices][gpu_simulator::kDevices] = {};
  if (peer == device_of_thread) return cudaErrorInvalidDevice;
  const std::lock_guard<std::mutex> lock(mutex);
  bool& there = enabled[device_of_thread][peer];
  return std::exchange(there, true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  return take(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kTotalBytes;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  *attributes = Ranges::instance().find(at);
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  *pool = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t /*pool*/) {
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  return take(memory, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  stream_of(stream).add([memory] { give(memory); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  stream_of(stream).add([to, from, bytes] {
    if (bytes != 0) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  (void)cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  stream_of(stream).add([at, value, bytes] { std::memset(at, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return cudaMemsetAsync(at, value, bytes, nullptr);
}

// The driver: memory that processes hand each other is a file in memory.
namespace {

struct Allocation {
  int file;
  std::size_t bytes;
  CUmemAllocationHandleType type;
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
CUresult context_get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device_of_thread) + 1);
  return CUDA_SUCCESS;
}
CUresult context_set_current(CUcontext context) {
  if (context != nullptr) {
    device_of_thread = static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
  }
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
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
CUresult handle_of(int file, std::size_t bytes, CUmemAllocationHandleType type,
                   CUmemGenericAllocationHandle* handle) {
  auto* const allocation = new (std::nothrow) Allocation{file, bytes, type};
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(allocation);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  if (bytes > kTotalBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = ::memfd_create("sluice-simulated-gpu", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    (void)::close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return handle_of(file, bytes, properties->requestedHandleTypes, handle);
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
  Ranges::instance().insert(at, bytes, cudaMemoryTypeDevice);
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  Ranges::instance().erase(pointer_of(address));
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
    const std::string name =
        "/proc/" + std::to_string(what.owner) + "/fd/" + std::to_string(what.file);
    copy = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  } else {
    copy = ::dup(static_cast<int>(reinterpret_cast<std::uintptr_t>(from)));
  }
  struct stat about {};
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  if (::fstat(copy, &about) != 0) {
    (void)::close(copy);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return handle_of(copy, static_cast<std::size_t>(about.st_size), type, handle);
}

struct Entry {
  std::string_view name;
  void* function;
};
const Entry kEntries[] = {
    {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
    {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
    {"cuCtxGetCurrent", reinterpret_cast<void*>(context_get_current)},
    {"cuCtxSetCurrent", reinterpret_cast<void*>(context_set_current)},
    {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_get_attribute)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
    {"cuMemCreate", reinterpret_cast<void*>(create)},
    {"cuMemRelease", reinterpret_cast<void*>(release)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
    {"cuMemMap", reinterpret_cast<void*>(map)},
    {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
    {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
    {"cuMemExportToShareableHandle", reinterpret_cast<void*>(export_handle)},
    {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(import_handle)}};

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
