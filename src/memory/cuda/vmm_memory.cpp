// SPDX-License-Identifier: MIT
#include "memory/cuda/vmm_memory.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/system_error.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/mapping.hpp"

namespace sluice::memory {
namespace {

static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(std::uint64_t));
static_assert(sizeof(CUdeviceptr) == sizeof(std::uintptr_t));

CUmemLocation location_of(int device) noexcept {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationHandleType type_of(VmmHandle kind) noexcept {
  return kind == VmmHandle::fabric ? CU_MEM_HANDLE_TYPE_FABRIC
                                   : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/// What lies in the file of a fabric handle.
struct FabricTicket {
  static constexpr std::uint64_t kMagic = 0x31'62'61'66'69'75'6C'73;  // "sluifab1"

  std::uint64_t magic = kMagic;
  CUmemFabricHandle handle = {};
};

/// False: there is none.
bool read_ticket(const base::Descriptor& file, FabricTicket& ticket) noexcept {
  return ::pread(file.number(), &ticket, sizeof(ticket), 0) == sizeof(ticket) &&
         ticket.magic == FabricTicket::kMagic;
}

CUmemAllocationProp properties_of(int device, VmmHandle kind) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type_of(kind);
  properties.location = location_of(device);
  if (kind == VmmHandle::network) properties.allocFlags.gpuDirectRDMACapable = 1;
  return properties;
}

struct Need {
  CUdevice_attribute attribute;
  const char* words;
};
constexpr Need kManagement = {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                              "virtual memory management"};
constexpr Need kFiles = {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                         "memory handles that are file descriptors"};
constexpr Need kNetwork = {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                           "mapped memory that a network's adapter reaches"};
constexpr Need kFabric = {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                          "memory handles for a fabric"};

Need need_of(VmmHandle kind) noexcept {
  switch (kind) {
    case VmmHandle::file: break;
    case VmmHandle::fabric: return kFabric;
    case VmmHandle::network: return kNetwork;
  }
  return kFiles;
}

// More than the GPU has is too little memory, whatever the driver calls it.
Status create_status(CUresult result, int device, std::size_t bytes, VmmHandle kind) {
  if (result == CUDA_ERROR_NOT_PERMITTED && kind == VmmHandle::fabric) {
    return Status(StatusCode::unavailable,
                  "memory handles for a fabric are not granted to this process on " +
                      gpu_text(device) + ": the driver's IMEX service has no channel for it");
  }
  std::size_t free = 0;
  std::size_t total = 0;
  const cudaError_t asked = cudaMemGetInfo(&free, &total);
  const Status status = cuda_status(
      result, "cannot take " + std::to_string(bytes) + " bytes of memory of " + gpu_text(device) +
                  " (" + std::to_string(free) + " of " + std::to_string(total) + " are free)");
  if (asked != cudaSuccess) (void)cudaGetLastError();
  return bytes > total ? Status(StatusCode::out_of_memory, status.message()) : status;
}

/// Owns a handle of the driver and its mapping.
class Vmm final : public SharedAllocation {
 public:
  Vmm(int device, VmmHandle kind, CUmemGenericAllocationHandle handle) noexcept
      : device_(device), kind_(kind), handle_(handle) {}
  ~Vmm() override {
    const Driver& driver = *Driver::get().value();
    if (mapped_) (void)driver.unmap(address_, bytes_);
    if (address_ != 0) (void)driver.address_free(address_, bytes_);
    (void)driver.release(handle_);
  }

  /// Gives the handle addresses that the device may read and write.
  Status map(std::size_t bytes, const char* what);

  std::byte* base() const noexcept override { return reinterpret_cast<std::byte*>(address_); }
  std::size_t bytes() const noexcept override { return bytes_; }
  Result<base::Descriptor> share() const override;

 private:
  int device_;
  VmmHandle kind_;
  CUmemGenericAllocationHandle handle_;  // What follows is undone in the reverse order.
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;  // Reserved at address_.
  bool mapped_ = false;
};

Status Vmm::map(std::size_t bytes, const char* what) {
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

Result<base::Descriptor> Vmm::share() const {
  const std::string what =
      "cannot share " + std::to_string(bytes_) + " bytes of " + gpu_text(device_) + "'s memory";
  int number = -1;
  FabricTicket ticket;
  void* const to = kind_ == VmmHandle::fabric ? static_cast<void*>(&ticket.handle) : &number;
  const CUresult result = Driver::get().value()->export_handle(to, handle_, type_of(kind_), 0);
  if (result != CUDA_SUCCESS) return cuda_status(result, what);
  if (kind_ == VmmHandle::fabric) {
    auto file = create_memory_file(sizeof(ticket), true);
    if (file && ::pwrite(file->number(), &ticket, sizeof(ticket), 0) != sizeof(ticket)) {
      return base::system_status(errno, what);
    }
    return file;
  }
  base::Descriptor file(number);
  (void)::fcntl(file.number(), F_SETFD, FD_CLOEXEC);
  return file;
}

}  // namespace

Status check_vmm(int device, VmmHandle kind) {
  const auto driver = Driver::get();
  if (!driver.ok()) return driver.status();
  CUdevice number{};
  const std::string asked = "cannot ask what " + gpu_text(device) + " can do";
  if (Status status = cuda_status((*driver)->device_get(&number, device), asked); !status.ok()) {
    return status;
  }
  for (const Need& need : {kManagement, need_of(kind)}) {
    int supported = 0;
    const CUresult result = (*driver)->device_get_attribute(&supported, need.attribute, number);
    if (Status status = cuda_status(result, asked); !status.ok()) return status;
    if (supported == 0) {
      return Status(StatusCode::unavailable,
                    gpu_text(device) + " or its driver has no " + need.words);
    }
  }
  return {};
}

Result<std::size_t> vmm_granularity(int device, VmmHandle kind) {
  const CUmemAllocationProp properties = properties_of(device, kind);
  std::size_t bytes = 0;
  const CUresult result =
      Driver::get().value()->granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot ask for the granularity of memory of " + gpu_text(device));
  }
  return bytes;
}

OwnedAllocation create_vmm(int device, std::size_t bytes, VmmHandle kind) {
  const CUmemAllocationProp properties = properties_of(device, kind);
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult result = Driver::get().value()->create(&handle, bytes, &properties, 0);
      result != CUDA_SUCCESS) {
    return create_status(result, device, bytes, kind);
  }
  auto memory = std::make_unique<Vmm>(device, kind, handle);
  if (Status status = memory->map(bytes, "its own memory"); !status.ok()) return status;
  return std::unique_ptr<SharedAllocation>(std::move(memory));
}

OwnedAllocation import_vmm(int device, const base::Descriptor& file, std::size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  FabricTicket ticket;
  const VmmHandle kind = read_ticket(file, ticket) ? VmmHandle::fabric : VmmHandle::file;
  // The driver's interface takes the number of a descriptor in place of a pointer.
  void* const from = kind == VmmHandle::fabric
                         ? static_cast<void*>(&ticket.handle)
                         : reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.number()));
  if (const CUresult result = Driver::get().value()->import_handle(&handle, from, type_of(kind));
      result != CUDA_SUCCESS) {
    return cuda_status(result, "cannot import " + std::to_string(bytes) +
                                   " bytes of GPU memory for " + gpu_text(device));
  }
  auto memory = std::make_unique<Vmm>(device, kind, handle);
  if (Status status = memory->map(bytes, "a peer's memory"); !status.ok()) return status;
  return std::unique_ptr<SharedAllocation>(std::move(memory));
}

VmmHandle vmm_handle_of(const base::Descriptor& file) noexcept {
  FabricTicket ticket;
  return read_ticket(file, ticket) ? VmmHandle::fabric : VmmHandle::file;
}

}  // namespace sluice::memory
