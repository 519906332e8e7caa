// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "base/descriptor.hpp"
#include "memory/cuda/shared_allocation.hpp"

namespace sluice::memory {

/// The driver's virtual memory management; what is handed over is a descriptor of the memory itself.
/// The GPU's context is current in all of these.
///
/// unavailable: the GPU or its driver cannot share memory in this way.
Status check_vmm(int device);
Result<std::size_t> vmm_granularity(int device);
/// `bytes`: a multiple of the granularity, not 0.
OwnedAllocation create_vmm(int device, std::size_t bytes);
OwnedAllocation import_vmm(int device, const base::Descriptor& file, std::size_t bytes);

}  // namespace sluice::memory
