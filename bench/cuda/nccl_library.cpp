// SPDX-License-Identifier: MIT
#include "nccl_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

namespace sluice::bench {
namespace {

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

template <typename Function>
Status require(void* library, const std::string& path, const char* name, Function*& function) {
  find(library, name, function);
  if (function != nullptr) return {};
  return Status(StatusCode::unavailable, fmt::format("--peer nccl: {} has no {}", path, name));
}

std::string version_text(int version) {
  // Before 2.9 a thousand stood for the major version; nobody has those any more.
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

Result<NcclLibrary> NcclLibrary::load(const std::string& path) {
  // NVLink multicast stays off, as everywhere in Sluice. Once: ranks may be threads.
  static std::once_flag once;
  std::call_once(once, [] { (void)setenv("NCCL_NVLS_ENABLE", "0", 0); });
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Status(StatusCode::unavailable,
                  fmt::format("--peer nccl: cannot load NCCL: {}; name the file with --nccl PATH",
                              reason != nullptr ? reason : path.c_str()));
  }
  NcclLibrary nccl;
  for (const Status& status :
       {require(library, path, "ncclGetVersion", nccl.get_version),
        require(library, path, "ncclGetUniqueId", nccl.get_unique_id),
        require(library, path, "ncclCommInitRank", nccl.comm_init_rank),
        require(library, path, "ncclCommAbort", nccl.comm_abort),
        require(library, path, "ncclGroupStart", nccl.group_start),
        require(library, path, "ncclGroupEnd", nccl.group_end),
        require(library, path, "ncclSend", nccl.send),
        require(library, path, "ncclRecv", nccl.recv),
        require(library, path, "ncclGetErrorString", nccl.get_error_string)}) {
    if (!status) return status;
  }
  find(library, "ncclMemAlloc", nccl.mem_alloc);
  find(library, "ncclMemFree", nccl.mem_free);
  find(library, "ncclCommRegister", nccl.comm_register);
  find(library, "ncclCommDeregister", nccl.comm_deregister);
  int version = 0;
  if (Status status = nccl.check(nccl.get_version(&version), "asking for its version"); !status) {
    return status;
  }
  nccl.version = version_text(version);
  return nccl;
}

bool NcclLibrary::registers_memory() const noexcept {
  return mem_alloc != nullptr && mem_free != nullptr && comm_register != nullptr &&
         comm_deregister != nullptr;
}

Status NcclLibrary::check(int result, const char* what) const {
  if (result == kSuccess) return {};
  return Status(StatusCode::io_error, fmt::format("NCCL, {}: {} ({}); NCCL_DEBUG=WARN says more",
                                                  what, get_error_string(result), result));
}

}  // namespace sluice::bench
