// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "base/descriptor.hpp"
#include "memory/cuda/shared_allocation.hpp"

namespace sluice::memory {

/// In which the runtime hands out memory that nothing else shares.
inline constexpr std::size_t kIpcGranularity = std::size_t{2} << 20;

/// CUDA's IPC handles, for where there is no virtual memory management (older drivers, some virtual
/// GPUs). The GPU's context is current in all of these.
///
/// A handle is only bytes, and its memory must not be freed before every other process has closed it.
/// So what is handed over is one end of a pair of sockets: the handle lies there, to be looked at by
/// whoever has the descriptor, and all who map the memory keep a descriptor open as long as they do. Once
/// its own end says that the other is closed everywhere, by leave or by death, the owner has it back. It keeps it for
/// the next one of as many bytes, until the GPU has too little left: to free it would wait for all kernels of the
/// process there, and one of them may spin until the calling thread has launched its own.
///
/// `bytes`: a multiple of kIpcGranularity, not 0.
OwnedAllocation create_ipc(int device, std::size_t bytes);
OwnedAllocation import_ipc(int device, const base::Descriptor& socket, std::size_t bytes);

/// Whether this is what create_ipc()'s memory shares.
bool is_ipc(const base::Descriptor& file) noexcept;

}  // namespace sluice::memory
