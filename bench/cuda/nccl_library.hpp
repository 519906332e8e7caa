// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "sluice/status.hpp"

namespace sluice::bench {

/// NCCL, found when it is asked for: Sluice neither links nor brings it. The functions are those of
/// its public C interface that the peer needs, declared by what its documentation says of them.
struct NcclLibrary {
  struct UniqueId {
    char bytes[128];
  };
  using Comm = struct NcclComm*;  // ncclComm_t
  using Stream = void*;           // cudaStream_t
  static constexpr int kSuccess = 0;
  static constexpr int kBytes = 1;  // ncclUint8

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(UniqueId* id) = nullptr;
  int (*comm_init_rank)(Comm* comm, int ranks, UniqueId id, int rank) = nullptr;
  int (*comm_abort)(Comm comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, Comm, Stream) = nullptr;
  int (*recv)(void* to, std::size_t count, int type, int peer, Comm, Stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  // From 2.19 on; null before.
  int (*mem_alloc)(void** memory, std::size_t bytes) = nullptr;
  int (*mem_free)(void* memory) = nullptr;
  int (*comm_register)(Comm comm, void* memory, std::size_t bytes, void** handle) = nullptr;
  int (*comm_deregister)(Comm comm, void* handle) = nullptr;

  std::string version;  ///< "2.27.3"

  /// `path`: as for dlopen. It stays loaded: its threads may outlive every communicator.
  static Result<NcclLibrary> load(const std::string& path);
  bool registers_memory() const noexcept;
  Status check(int result, const char* what) const;
};

}  // namespace sluice::bench
