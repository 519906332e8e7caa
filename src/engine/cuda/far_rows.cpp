// SPDX-License-Identifier: MIT
#include "engine/cuda/far_rows.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/pinned_memory.hpp"

namespace sluice::engine::cuda {

using GpuRows = transport::RelaySettings::GpuRows;

Result<FarRows> FarRows::take(transport::Endpoint& endpoint, GpuRows wanted, int rank, int device,
                              std::size_t bytes) {
  FarRows rows;
  Status direct(StatusCode::unavailable,
                fmt::format("provider {} does not reach GPU memory", endpoint.traits().provider));
  if (wanted != GpuRows::staged && endpoint.traits().device_memory) {
    direct = rows.take_of_gpu(endpoint, device, bytes);
    if (direct.ok()) {
      base::log_info("rank {}: rows to other nodes: {} bytes of memory of GPU {}", rank,
                     rows.of_gpu_.bytes(), device);
      return rows;
    }
  }
  if (wanted == GpuRows::direct) {
    return Status(direct.code(),
                  fmt::format("{} = direct: {}", base::name_of(base::Variable::network_gpu),
                              direct.message()));
  }
  Status status = rows.take_pinned(endpoint, bytes);
  if (!status.ok()) return status;
  base::log_info("rank {}: rows to other nodes: {} bytes of pinned memory ({})", rank, bytes,
                 wanted == GpuRows::staged ? "as asked for" : direct.message());
  return rows;
}

Status FarRows::take_of_gpu(transport::Endpoint& endpoint, int device, std::size_t bytes) {
  Result<memory::NetworkMemory> memory = memory::NetworkMemory::create(device, bytes);
  if (!memory.ok()) return memory.status();
  transport::DeviceRegion region;
  region.base = memory->base();
  region.bytes = memory->bytes();
  region.device = device;
  region.dmabuf = memory->dmabuf().number();
  region.copy = memory::NetworkMemory::copy;
  const Status status = endpoint.add_device_region(region).status();
  if (!status.ok()) return status;
  of_gpu_ = std::move(memory).value();
  seen_ = of_gpu_.base();
  return {};
}

Status FarRows::take_pinned(transport::Endpoint& endpoint, std::size_t bytes) {
  Result<std::shared_ptr<void>> pinned = memory::take_pinned(bytes);
  if (!pinned.ok()) return pinned.status();
  pinned_ = std::move(pinned).value();
  void* seen = nullptr;
  const Status status = memory::cuda_status(cudaHostGetDevicePointer(&seen, pinned_.get(), 0),
                                            "mapping pinned memory");
  if (!status.ok()) return status;
  seen_ = static_cast<std::byte*>(seen);
  return endpoint.add_region(static_cast<std::byte*>(pinned_.get()), bytes).status();
}

}  // namespace sluice::engine::cuda
