// SPDX-License-Identifier: MIT
//
// Memory and devices of the simulated GPU. A GPU's memory is the host's, but for what CUDA says of it.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu_simulator/device_list.hpp"
#include "ranges.hpp"
#include "streams.hpp"

namespace {

using gpu_simulator::BlockHandle;
using gpu_simulator::kTotalBytes;
using gpu_simulator::Ranges;
using gpu_simulator::stream_of;

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kFilledBytes = std::size_t{4} << 20;

// The thread's choice, which counts where it has no context.
thread_local int device_of_thread = 0;
std::array<std::atomic<bool>, gpu_simulator::kDevices> contexts{};

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

int gpu_simulator::open_block(const BlockHandle& what) {
  const std::string name =
      "/proc/" + std::to_string(what.owner) + "/fd/" + std::to_string(what.file);
  return ::open(name.c_str(), O_RDWR | O_CLOEXEC);
}
int gpu_simulator::processors() noexcept {
  const char* const text = std::getenv("SLUICE_SIMULATOR_PROCESSORS");
  return std::clamp(text == nullptr ? 4 : std::atoi(text), 1, 64);
}
std::vector<int>& gpu_simulator::contexts_of_thread() {
  thread_local std::vector<int> pushed;
  return pushed;
}
bool gpu_simulator::has_context(int device) noexcept {
  return contexts[static_cast<std::size_t>(device)].load();
}
void gpu_simulator::make_context(int device) noexcept {
  contexts[static_cast<std::size_t>(device)].store(true);
}
// Of who uses it: there is a context from then on.
int gpu_simulator::current_device() noexcept {
  std::vector<int>& pushed = contexts_of_thread();
  if (pushed.empty()) pushed.push_back(device_of_thread);
  make_context(pushed.back());
  return pushed.back();
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
  const std::vector<int>& pushed = gpu_simulator::contexts_of_thread();
  *device = pushed.empty() ? device_of_thread : pushed.back();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_simulator::kDevices) return cudaErrorInvalidDevice;
  std::vector<int>& pushed = gpu_simulator::contexts_of_thread();
  if (pushed.empty()) pushed.push_back(device);
  device_of_thread = pushed.back() = device;
  gpu_simulator::make_context(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = gpu_simulator::processors(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(gpu_simulator::kDynamicBytes);
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"simulated GPU", std::size_t{1} << 32, gpu_simulator::processors(), 9, 0};
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
  // As seen of a real one.
  const std::lock_guard<std::mutex> lock(gpu_simulator::launching(gpu_simulator::current_device()));
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
  const int file = gpu_simulator::open_block(what);
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
  const int device = gpu_simulator::current_device();
  if (peer == device) return cudaErrorInvalidDevice;
  const std::lock_guard<std::mutex> lock(mutex);
  bool& there = enabled[device][peer];
  return std::exchange(there, true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  return take(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* memory, unsigned /*flags*/) {
  *seen = memory;
  return cudaSuccess;
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
  // Nobody else copies there than who plays an adapter of a network.
  const int network_device =
      Ranges::instance().file_of(to) >= 0 ? Ranges::instance().find(to).device : -1;
  stream_of(stream).add([to, from, bytes, network_device] {
    if (bytes == 0) return;
    if (network_device >= 0) {
      return gpu_simulator::NetworkWrites::instance().add(network_device, to, from, bytes);
    }
    std::memcpy(to, from, bytes);
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
