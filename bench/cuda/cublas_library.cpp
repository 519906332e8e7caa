// SPDX-License-Identifier: MIT
#include "cublas_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

#include "library_functions.hpp"

namespace sluice::bench {

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
  const auto required = [&](const char* name, auto*& function) {
    return require_function(library, "--gemm", found, name, function);
  };
  for (const Status& status :
       {required("cublasCreate_v2", cublas.create), required("cublasDestroy_v2", cublas.destroy),
        required("cublasGetVersion_v2", cublas.get_version),
        required("cublasSetStream_v2", cublas.set_stream),
        required("cublasSetWorkspace_v2", cublas.set_workspace),
        required("cublasGemmEx", cublas.gemm),
        required("cublasGetStatusString", cublas.get_status_string)}) {
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
