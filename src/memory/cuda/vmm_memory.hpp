// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/descriptor.hpp"
#include "memory/cuda/shared_allocation.hpp"

namespace sluice::memory {

/// How the driver's virtual memory management hands memory over. file: a descriptor of the memory itself. fabric: 64 bytes
/// that reach it from every host of an NVLink domain, where the driver's IMEX service grants that; they lie in a file of
/// their own, which does not keep the memory: until it is imported, its owner must live. network: as file, of memory that
/// adapters of a network may reach besides (network_memory.hpp).
enum class VmmHandle : std::uint8_t { file, fabric, network };

/// The GPU's context is current in all of these.
///
/// unavailable: the GPU or its driver cannot share memory in this way.
Status check_vmm(int device, VmmHandle kind);
Result<std::size_t> vmm_granularity(int device, VmmHandle kind);
/// `bytes`: a multiple of the granularity, not 0.
OwnedAllocation create_vmm(int device, std::size_t bytes, VmmHandle kind);
OwnedAllocation import_vmm(int device, const base::Descriptor& file, std::size_t bytes);

/// What a descriptor is of that is no socket (ipc_memory.hpp).
VmmHandle vmm_handle_of(const base::Descriptor& file) noexcept;

}  // namespace sluice::memory
