// SPDX-License-Identifier: MIT
//
// CUDA's language for kernels, as far as Sluice uses it, for one block on one thread of the host. To be
// included after all standard headers: some names here are words that those use.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu_simulator/device_list.hpp"
#include "gpu_simulator/kernel_launch.hpp"
#include "numeric/convert.hpp"

namespace gpu_simulator {

/// Where the 32 threads of a warp meet; all of them take part in everything here.
#ifdef __cpp_lib_source_location
using Place = std::source_location;
#else  // clang++ 14
class Place {
 public:
  static constexpr Place current(const char* file = __builtin_FILE(),
                                 unsigned line = __builtin_LINE(),
                                 unsigned column = __builtin_COLUMN()) {
    Place place;
    place.file_ = file;
    place.line_ = line;
    place.column_ = column;
    return place;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0;
  unsigned column_ = 0;
};
#endif

/// The 32 values that the threads of a warp bring, and a bit for each that is odd.
struct Exchanged {
  std::uint64_t values[32];
  unsigned odd;
};
/// One of them is `own`.
const Exchanged& exchange(unsigned mask, const Place& place, std::uint64_t own);
/// Waits for all threads of the block that have not ended, and counts those with `condition`.
struct Count {
  int with;
  int of;
};
Count barrier(bool condition);
/// Lets others go on: this thread asks for something that may not have come yet.
void poll();
/// Notes what came of it: a place and what is there, as one number.
void saw(std::uint64_t what);
/// Notes that this warp has done something that others can see.
void wrote();
/// Before a store that others wait for: one in so many comes late, so that those of a warp's threads are
/// not seen together.
void linger(unsigned one_in);

/// Memory of kDynamicBytes that the blocks of this thread of the host have, one after the other.
using Bytes = std::byte[];
Bytes* dynamic_memory();

/// Nanoseconds, by the host's clock.
std::uint64_t now();

/// The thread of a grid that runs on this thread of the host.
struct Coordinates {
  unsigned thread;
  unsigned block;
  unsigned blocks;
};
extern constinit thread_local Coordinates current;

template <typename T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
template <typename T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
/// Of a place and what is there. Odd factors, so that no bit is lost.
template <typename T>
void saw(const T* at, T value) {
  saw(reinterpret_cast<std::uintptr_t>(at) * 0xD6E8FEB86659FD93 + to_word(value));
}

}  // namespace gpu_simulator

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
/// A block has its thread of the host to itself.
#define __shared__ thread_local
/// What the name of a kernel's dynamic shared memory stands for: an array of every thread of the host would be zeroed
/// whenever one begins.
#define SLUICE_DYNAMIC_MEMORY(name) (*name##_memory_of_block)
#define SLUICE_DEFINE_DYNAMIC_MEMORY(name) \
  thread_local std::byte SLUICE_DYNAMIC_MEMORY(name)[] = gpu_simulator::dynamic_memory()

/// A number that every thread asks for: threadIdx.x and its like.
template <unsigned gpu_simulator::Coordinates::*kWhich>
struct Coordinate {
  struct Number {
    operator unsigned() const { return gpu_simulator::current.*kWhich; }
  };
  Number x;
};
inline constexpr Coordinate<& gpu_simulator::Coordinates::thread> threadIdx = {};
inline constexpr Coordinate<& gpu_simulator::Coordinates::block> blockIdx = {};
inline constexpr Coordinate<& gpu_simulator::Coordinates::blocks> gridDim = {};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a > b ? a : b;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}

// Of numbers.
inline int __popc(unsigned v) {
  return std::popcount(v);
}
inline int __clz(int v) {
  return std::countl_zero(static_cast<unsigned>(v));
}
inline int __ffs(int v) {
  return __builtin_ffs(v);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
inline unsigned __float_as_uint(float v) {
  return std::bit_cast<unsigned>(v);
}
inline float __uint_as_float(unsigned v) {
  return std::bit_cast<float>(v);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

// Of warps. Threads that meet come from the same place in the source.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane,
              const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const auto& all = gpu_simulator::exchange(mask, place, gpu_simulator::to_word(value)).values;
  return gpu_simulator::from_word<T>(all[lane & 31]);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int step,
                  const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ step, place);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int step,
                 const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, lane >= step ? lane - step : lane, place);
}
inline unsigned __ballot_sync(unsigned mask, bool condition,
                              const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  return gpu_simulator::exchange(mask, place, condition ? 1 : 0).odd;
}
inline bool __any_sync(unsigned mask, bool condition,
                       const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  return __ballot_sync(mask, condition, place) != 0;
}
inline bool __all_sync(unsigned mask, bool condition,
                       const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  return __ballot_sync(mask, condition, place) == ~0U;
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value,
                    const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const auto& all = gpu_simulator::exchange(mask, place, gpu_simulator::to_word(value)).values;
  unsigned sum = 0;
  for (int i = 0; i < 32; ++i) sum += gpu_simulator::from_word<unsigned>(all[i]);
  return static_cast<T>(sum);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value,
                    const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const auto& all = gpu_simulator::exchange(mask, place, gpu_simulator::to_word(value)).values;
  for (int i = 0; i < 32; ++i) {
    const T other = gpu_simulator::from_word<T>(all[i]);
    if (other > value) value = other;
  }
  return value;
}
inline unsigned __reduce_or_sync(
    unsigned mask, unsigned value,
    const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const auto& all = gpu_simulator::exchange(mask, place, std::uint64_t{value}).values;
  unsigned sum = 0;
  for (int i = 0; i < 32; ++i) sum |= static_cast<unsigned>(all[i]);
  return sum;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value,
                          const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  const std::uint64_t own = gpu_simulator::to_word(value);
  const auto& all = gpu_simulator::exchange(mask, place, own).values;
  unsigned same = 0;
  for (unsigned i = 0; i < 32; ++i) same |= (all[i] == own ? 1U : 0U) << i;
  return same;
}
inline void __syncwarp(const gpu_simulator::Place& place = gpu_simulator::Place::current()) {
  (void)gpu_simulator::exchange(~0U, place, 0);
}

// Of blocks.
inline void __syncthreads() {
  (void)gpu_simulator::barrier(false);
}
inline int __syncthreads_count(int condition) {
  return gpu_simulator::barrier(condition != 0).with;
}
inline int __syncthreads_or(int condition) {
  return gpu_simulator::barrier(condition != 0).with != 0 ? 1 : 0;
}
inline int __syncthreads_and(int condition) {
  const gpu_simulator::Count count = gpu_simulator::barrier(condition != 0);
  return count.with == count.of ? 1 : 0;
}

// Of memory. All scopes are one here.
template <typename T, typename V>
T atomicAdd(T* at, V value) {
  gpu_simulator::wrote();
  return std::atomic_ref<T>(*at).fetch_add(static_cast<T>(value));
}
template <typename T, typename V>
T atomicOr(T* at, V value) {
  gpu_simulator::wrote();
  return std::atomic_ref<T>(*at).fetch_or(static_cast<T>(value));
}
template <typename T, typename V>
T atomicMax(T* at, V value) {
  gpu_simulator::wrote();
  std::atomic_ref<T> word(*at);
  T seen = word.load();
  while (seen < static_cast<T>(value) && !word.compare_exchange_weak(seen, value)) {
  }
  return seen;
}
template <typename T>
T atomicCAS(T* at, T expected, T value) {
  gpu_simulator::poll();
  if (std::atomic_ref<T>(*at).compare_exchange_strong(expected, value)) gpu_simulator::wrote();
  return expected;
}
template <typename T>
T atomicExch(T* at, T value) {
  gpu_simulator::wrote();
  return std::atomic_ref<T>(*at).exchange(value);
}
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
