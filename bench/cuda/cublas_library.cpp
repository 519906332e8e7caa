// SPDX-License-Identifier: MIT
#include "cublas_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

namespace sluice::bench {
namespace {

template <typename Function>
Status require(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function != nullptr) return {};
  return Status(StatusCode::unavailable, fmt::format("--gemm: {} has no {}", path, name));
}

}  // namespace

Result<CublasLibrary> CublasLibrary::load(const std::string& path) {
  std::vector<std::string> names = {path};
  if (path.empty()) names = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  void* library = nullptr;
  std::string found;
  std::string reasons;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    found = name;
    if (library != nullptr) break;
    const char* reason = dlerror();
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", reason != nullptr ? reason : name);
  }
  if (library == nullptr) {
    return Status(
        StatusCode::unavailable,
        fmt::format("--gemm: cannot load cuBLAS: {}; name the file with --cublas PATH", reasons));
  }
  CublasLibrary cublas;
  for (const Status& status :
       {require(library, found, "cublasCreate_v2", cublas.create),
        require(library, found, "cublasDestroy_v2", cublas.destroy),
        require(library, found, "cublasGetVersion_v2", cublas.get_version),
        require(library, found, "cublasSetStream_v2", cublas.set_stream),
        require(library, found, "cublasSetWorkspace_v2", cublas.set_workspace),
        require(library, found, "cublasGemmEx", cublas.gemm),
        require(library, found, "cublasGetStatusString", cublas.get_status_string)}) {
    if (!status) return status;
  }
  return cublas;
}

Status CublasLibrary::check(int status, const char* what) const {
  if (status == kSuccess) return {};
  return Status(StatusCode::io_error,
                fmt::format("cuBLAS, {}: {} ({})", what, get_status_string(status), status));
}

}  // namespace sluice::bench
