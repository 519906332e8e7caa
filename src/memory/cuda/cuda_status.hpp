// SPDX-License-Identifier: MIT
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "sluice/status.hpp"

namespace sluice::memory {

/// A Status for what a call of CUDA's runtime returned: "<what>: out of memory
/// (cudaErrorMemoryAllocation)". Clears the runtime's last error, so that the caller's own next look
/// at it does not see ours. Too little memory gives out_of_memory, what this machine or its driver
/// lacks gives unavailable, everything else io_error.
Status cuda_status(cudaError_t error, std::string_view what);

/// The same for the driver.
Status cuda_status(CUresult error, std::string_view what);

/// "GPU 3"
std::string gpu_text(int device);

/// "0000:3B:00.0", the device's address of PCI; empty: not known.
std::string pci_address(int device);

/// What tells the device, or the part of one that MIG makes, from all others of all machines: 16 bytes. Containers and virtual
/// machines name hosts and addresses of PCI as they like.
Result<std::string> device_uuid(int device);

}  // namespace sluice::memory
