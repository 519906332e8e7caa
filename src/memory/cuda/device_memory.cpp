// SPDX-License-Identifier: MIT
#include "memory/cuda/device_memory.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <limits>
#include <string>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/driver.hpp"

namespace sluice::memory {
namespace {

static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(std::uint64_t));
static_assert(sizeof(CUdeviceptr) == sizeof(std::uintptr_t));

std::string gpu_text(int device) {
  return "GPU " + std::to_string(device);
}

CUmemLocation location_of(int device) noexcept {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp properties_of(int device) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location_of(device);
  return properties;
}

struct Need {
  CUdevice_attribute attribute;
  const char* words;
};
constexpr Need kNeeds[] = {
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
     "memory handles that are file descriptors"},
};

// The driver, if `device` is there and can share its memory.
Result<const Driver*> driver_for(int device) {
  int count = 0;
  if (Status status = cuda_status(cudaGetDeviceCount(&count), "no GPU can be used"); !status.ok()) {
    return Status(StatusCode::unavailable, status.message());
  }
  if (count == 0) return Status(StatusCode::unavailable, "no GPU can be used: none is visible");
  if (device < 0 || device >= count) {
    return Status(StatusCode::invalid_argument, "there is no " + gpu_text(device) +
                                                    ", expected a number from 0 to " +
                                                    std::to_string(count - 1));
  }
  auto driver = Driver::get();
  if (!driver.ok()) return driver;
  CUdevice number{};
  const std::string asked = "cannot ask what " + gpu_text(device) + " can do";
  if (Status status = cuda_status((*driver)->device_get(&number, device), asked); !status.ok()) {
    return status;
  }
  for (const Need& need : kNeeds) {
    int supported = 0;
    const CUresult result = (*driver)->device_get_attribute(&supported, need.attribute, number);
    if (Status status = cuda_status(result, asked); !status.ok()) return status;
    if (supported == 0) {
      return Status(StatusCode::unavailable,
                    gpu_text(device) + " or its driver has no " + need.words);
    }
  }
  return driver;
}

Result<std::size_t> granularity_of(const Driver& driver, int device) {
  const CUmemAllocationProp properties = properties_of(device);
  std::size_t bytes = 0;
  const CUresult result = driver.granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot ask for the granularity of memory of " + gpu_text(device));
  }
  return bytes;
}

// What would overflow becomes the largest multiple, which no GPU has.
std::size_t rounded(std::size_t bytes, std::size_t granularity) noexcept {
  const std::size_t units = bytes / granularity + (bytes % granularity != 0 ? 1 : 0);
  return units > std::numeric_limits<std::size_t>::max() / granularity ? (units - 1) * granularity
                                                                       : units * granularity;
}

// On a stream of its own: the default one would wait for what the caller has under way.
Status fill_with(std::byte* base, std::size_t bytes, unsigned char fill) {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(base, fill, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  return cuda_status(error, "cannot fill " + std::to_string(bytes) + " bytes of GPU memory");
}

// More than the GPU has is too little memory, whatever the driver calls it.
Status create_status(CUresult result, int device, std::size_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  const cudaError_t asked = cudaMemGetInfo(&free, &total);
  const Status status = cuda_status(
      result, "cannot take " + std::to_string(bytes) + " bytes of memory of " + gpu_text(device) +
                  " (" + std::to_string(free) + " of " + std::to_string(total) + " are free)");
  if (asked != cudaSuccess) (void)cudaGetLastError();
  return bytes > total ? Status(StatusCode::out_of_memory, status.message()) : status;
}

}  // namespace

void DeviceMemory::swap(DeviceMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(has_handle_, other.has_handle_);
  std::swap(mapped_, other.mapped_);
}

DeviceMemory::~DeviceMemory() {
  if (!has_handle_ && address_ == 0) return;
  const Driver& driver = *Driver::get().value();
  if (mapped_) (void)driver.unmap(address_, bytes_);
  if (address_ != 0) (void)driver.address_free(address_, bytes_);
  if (has_handle_) (void)driver.release(handle_);
}

// Gives handle_ addresses that the device may read and write.
Status DeviceMemory::map(std::size_t bytes, const char* what) {
  const Driver& driver = *Driver::get().value();
  const std::string whose = std::to_string(bytes) + " bytes of " + what;
  CUdeviceptr address = 0;
  if (const CUresult result = driver.address_reserve(&address, bytes, 0, 0, 0);
      result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot reserve addresses for " + whose);
  }
  address_ = address;
  bytes_ = bytes;
  if (const CUresult result = driver.map(address_, bytes_, 0, handle_, 0); result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot map " + whose);
  }
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location = location_of(device_);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (const CUresult result = driver.set_access(address_, bytes_, &access, 1);
      result != CUDA_SUCCESS) {
    const Status status = cuda_status(result, gpu_text(device_) + " cannot reach " + whose);
    return Status(StatusCode::unavailable, status.message());
  }
  return {};
}

Result<DeviceMemory> DeviceMemory::create(int device, std::size_t bytes, unsigned char fill) {
  const auto driver = driver_for(device);
  if (!driver.ok()) return driver.status();
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  const auto unit = granularity_of(*driver.value(), device);
  if (!unit.ok()) return unit.status();

  DeviceMemory memory(device);
  if (bytes == 0) return memory;
  const std::size_t wanted = rounded(bytes, unit.value());
  const CUmemAllocationProp properties = properties_of(device);
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult result = driver.value()->create(&handle, wanted, &properties, 0);
      result != CUDA_SUCCESS) {
    return create_status(result, device, wanted);
  }
  memory.handle_ = handle;
  memory.has_handle_ = true;
  if (Status status = memory.map(wanted, "its own memory"); !status.ok()) return status;
  if (Status status = fill_with(memory.base(), wanted, fill); !status.ok()) return status;
  return memory;
}

Result<DeviceMemory> DeviceMemory::import(int device, const base::Descriptor& file,
                                          std::size_t bytes) {
  const auto driver = driver_for(device);
  if (!driver.ok()) return driver.status();
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  const auto unit = granularity_of(*driver.value(), device);
  if (!unit.ok()) return unit.status();

  DeviceMemory memory(device);
  if (bytes == 0) return memory;
  const std::string whose = std::to_string(bytes) + " bytes of GPU memory";
  if (!file.open()) {
    return Status(StatusCode::invalid_argument,
                  "cannot import " + whose + ": expected an open descriptor, seen a closed one");
  }
  CUmemGenericAllocationHandle handle = 0;
  // The driver's interface takes the number of a descriptor in place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.number()));
  if (const CUresult result =
          driver.value()->import_handle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot import " + whose + " for " + gpu_text(device));
  }
  memory.handle_ = handle;
  memory.has_handle_ = true;
  if (Status status = memory.map(rounded(bytes, unit.value()), "a peer's memory"); !status.ok()) {
    return status;
  }
  return memory;
}

Result<base::Descriptor> DeviceMemory::share() const {
  if (!has_handle_) return base::Descriptor();
  int number = -1;
  const CUresult result = Driver::get().value()->export_handle(
      &number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot share " + std::to_string(bytes_) + " bytes of " +
                                   gpu_text(device_) + "'s memory");
  }
  base::Descriptor file(number);
  (void)::fcntl(file.number(), F_SETFD, FD_CLOEXEC);
  return file;
}

Result<std::size_t> DeviceMemory::granularity(int device) {
  const auto driver = driver_for(device);
  if (!driver.ok()) return driver.status();
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  return granularity_of(*driver.value(), device);
}

}  // namespace sluice::memory
