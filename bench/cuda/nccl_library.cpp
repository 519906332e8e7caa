// SPDX-License-Identifier: MIT
#include "nccl_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

#include "library_functions.hpp"

namespace sluice::bench {
namespace {

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
  const auto required = [&](const char* name, auto*& function) {
    return require_function(library, "--peer nccl", path, name, function);
  };
  for (const Status& status :
       {required("ncclGetVersion", nccl.get_version),
        required("ncclGetUniqueId", nccl.get_unique_id),
        required("ncclCommInitRank", nccl.comm_init_rank),
        required("ncclCommAbort", nccl.comm_abort), required("ncclGroupStart", nccl.group_start),
        required("ncclGroupEnd", nccl.group_end), required("ncclSend", nccl.send),
        required("ncclRecv", nccl.recv), required("ncclGetErrorString", nccl.get_error_string)}) {
    if (!status) return status;
  }
  find_function(library, "ncclMemAlloc", nccl.mem_alloc);
  find_function(library, "ncclMemFree", nccl.mem_free);
  find_function(library, "ncclCommRegister", nccl.comm_register);
  find_function(library, "ncclCommDeregister", nccl.comm_deregister);
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
