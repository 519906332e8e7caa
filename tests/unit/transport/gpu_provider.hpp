// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/libfabric/library.hpp"

/// A provider of libfabric that reaches memory of GPUs, played by one that is on any machine: its
/// memory of GPUs is the host's, and what it grants is the test's to say. Within one thread.
namespace sluice::transport::gpu_provider {

struct Grants {
  bool memory_of_gpus = true;
  bool without_cuda = true;
  bool dmabuf = true;
  bool address = true;
  int registrations = 1000;  ///< Of memory of GPUs, as many.
};

struct Registration {
  bool by_dmabuf = false;
  bool of_cuda = false;
  int device = -1;
  const void* base = nullptr;
  std::size_t bytes = 0;
  int file = -1;
  std::uint64_t offset = 0;
};

/// Library::load()'s, with that provider in the place of its own of the same name.
Result<Library> library(const Grants& grants);
/// What was registered since then.
const std::vector<Registration>& registrations() noexcept;

}  // namespace sluice::transport::gpu_provider
