// SPDX-License-Identifier: MIT
#pragma once

/// SLUICE_HD marks a function that host and device share. SLUICE_INLINE is the same for small
/// functions that must leave no copy of their own in an object file: several objects of this
/// library are compiled for newer instruction sets, and a linker that kept their copy of a shared
/// inline function would hand it to processors that cannot run it.
#if defined(__CUDACC__)
#define SLUICE_HD __host__ __device__
#define SLUICE_INLINE __host__ __device__ __forceinline__
#else
#define SLUICE_HD
#define SLUICE_INLINE inline __attribute__((always_inline))
#endif
