// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "sluice/status.hpp"

namespace sluice::bench {

/// cuBLAS, found when it is asked for: Sluice neither links nor brings it. The functions are those of its
/// public C interface that a GEMM needs, with the values of its enums, as cublas_api.h and library_types.h
/// of CUDA 13.0 declare them (docs.nvidia.com/cuda/cublas).
struct CublasLibrary {
  using Handle = struct cublasContext*;
  using Stream = void*;  // cudaStream_t
  static constexpr int kSuccess = 0;
  static constexpr int kPlain = 0;        // CUBLAS_OP_N
  static constexpr int kTransposed = 1;   // CUBLAS_OP_T
  static constexpr int kBf16 = 14;        // CUDA_R_16BF
  static constexpr int kComputeF32 = 68;  // CUBLAS_COMPUTE_32F
  static constexpr int kAlgorithm = -1;   // CUBLAS_GEMM_DEFAULT

  int (*create)(Handle* handle) = nullptr;
  int (*destroy)(Handle handle) = nullptr;
  int (*get_version)(Handle handle, int* version) = nullptr;
  int (*set_stream)(Handle handle, Stream stream) = nullptr;
  int (*set_workspace)(Handle handle, void* workspace, std::size_t bytes) = nullptr;
  /// Columns are contiguous.
  int (*gemm)(Handle handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
              const void* a, int a_type, int a_stride, const void* b, int b_type, int b_stride,
              const void* beta, void* c, int c_type, int c_stride, int compute_type,
              int algorithm) = nullptr;
  const char* (*get_status_string)(int status) = nullptr;

  /// `path`: as for dlopen; empty: the usual names. It stays loaded.
  static Result<CublasLibrary> load(const std::string& path);
  Status check(int status, const char* what) const;
};

}  // namespace sluice::bench
