// SPDX-License-Identifier: MIT
//
// What src/engine/cuda/ptx.cuh says in PTX, for the simulated GPU: found before it.
#pragma once

#include <cuda_runtime_api.h>

#include <emmintrin.h>

#include <cstddef>
#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu_simulator/device.hpp"
#include "gpu_simulator/losses.hpp"

namespace sluice::engine::cuda {

// 16 aligned bytes are one access on every x86 processor with AVX.
inline bool is_lost(const void* at, uint4 v) {
  const std::uint32_t word = gpu_simulator::lost_word.load(std::memory_order_relaxed);
  const std::uint32_t second = gpu_simulator::lost_second_word.load(std::memory_order_relaxed);
  const bool named = (word != 0 && v.x == word && v.y == word && v.z == word && v.w == word) ||
                     (second != 0 && v.y == second);
  return named && (reinterpret_cast<std::uintptr_t>(at) & 512) != 0;
}
inline void store_packet(void* at, uint4 v) {
  if (is_lost(at, v)) return;
  __m128i value;
  std::memcpy(&value, &v, 16);
  gpu_simulator::linger(4096);
  asm volatile("movdqa %1, %0" : "=m"(*static_cast<__m128i*>(at)) : "x"(value) : "memory");
  gpu_simulator::wrote();
}
inline uint4 load_packet(const void* at) {
  gpu_simulator::poll();
  __m128i value;
  asm volatile("movdqa %1, %0" : "=x"(value) : "m"(*static_cast<const __m128i*>(at)) : "memory");
  uint4 v;
  std::memcpy(&v, &value, 16);
  const std::uint64_t low = v.x | std::uint64_t{v.y} << 32;
  const std::uint64_t high = v.z | std::uint64_t{v.w} << 32;
  gpu_simulator::saw(static_cast<const std::uint64_t*>(at), low + high * 0xFF51AFD7ED558CCD);
  return v;
}
inline uint4 load_packet_acquire(const void* at) {
  return load_packet(at);
}
template <bool kAcquire>
uint4 load_packet_as(const void* at) {
  return load_packet(at);
}

inline std::uint64_t load_relaxed(const std::uint64_t* at) {
  gpu_simulator::poll();
  const std::uint64_t value = __atomic_load_n(at, __ATOMIC_RELAXED);
  gpu_simulator::saw(at, value);
  return value;
}
inline void store_relaxed(std::uint64_t* at, std::uint64_t value) {
  const std::uint32_t count = gpu_simulator::lost_count.load(std::memory_order_relaxed);
  if (count != 0 && (value >> 32 & 0xFFFFU) == count &&
      (reinterpret_cast<std::uintptr_t>(at) & 8) != 0)
    return;
  gpu_simulator::linger(8);
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
  gpu_simulator::wrote();
}
inline void store_relaxed(std::uint32_t* at, std::uint32_t value) {
  gpu_simulator::linger(8);
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
  gpu_simulator::wrote();
}
inline void fence_system() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void fence_device() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline std::uint32_t count_up(std::uint32_t* at) {
  return __atomic_fetch_add(at, 1U, __ATOMIC_ACQ_REL);
}
template <typename T>
T load_acquire(const T* at) {
  gpu_simulator::poll();
  const T value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  gpu_simulator::saw(at, value);
  gpu_simulator::linger(64);  // What was seen may be old.
  return value;
}
inline std::uint32_t load_acquire_device(const std::uint32_t* at) {
  return load_acquire(at);
}
inline std::uint32_t glance(const std::uint32_t* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
template <typename T, typename V>
void store_release(T* at, V value) {
  __atomic_store_n(at, static_cast<T>(value), __ATOMIC_RELEASE);
  gpu_simulator::wrote();
}

template <typename T>
T load_now(const T* at) {
  return *at;
}
inline uint4 load16(const void* at) {
  uint4 v;
  std::memcpy(&v, __builtin_assume_aligned(at, 16), 16);
  return v;
}

inline void prepare_signal(std::uint64_t* signal) {
  __atomic_store_n(signal, 0, __ATOMIC_RELAXED);
}
inline void raise(std::uint64_t* signal) {
  __atomic_store_n(signal, 1, __ATOMIC_RELEASE);
}
inline bool raised(const std::uint64_t* signal) {
  gpu_simulator::poll();
  return __atomic_load_n(signal, __ATOMIC_ACQUIRE) != 0;
}

inline void prefetch(const void* /*at*/) {}
/// Copies that a thread of this block has asked for.
using SharedAt = std::byte*;
inline SharedAt shared_at(void* shared) {
  return static_cast<SharedAt>(shared);
}
inline uint4 load_shared(SharedAt at) {
  return *reinterpret_cast<const uint4*>(at);
}

/// Of a block.
inline constexpr std::size_t kThreadsMax = 1024;

struct Copy {
  void* to;
  const void* from;
};
inline std::vector<Copy>& own_copies() {
  static thread_local std::vector<std::vector<Copy>> copies(kThreadsMax);
  return copies[gpu_simulator::current.thread];
}
inline void copy_async(void* shared, const void* global) {
  own_copies().push_back({shared, global});
}
/// They are not ordered: the last first.
inline void await_copies() {
  std::vector<Copy>& copies = own_copies();
  for (; !copies.empty(); copies.pop_back()) {
    std::memcpy(__builtin_assume_aligned(copies.back().to, 16),
                __builtin_assume_aligned(copies.back().from, 16), 16);
  }
}

/// In groups: done as late as they may be.
inline void copy_async(SharedAt to, const void* global) {
  own_copies().push_back({to, global});
}
inline std::deque<std::vector<Copy>>& own_copy_groups() {
  static thread_local std::vector<std::deque<std::vector<Copy>>> groups(kThreadsMax);
  return groups[gpu_simulator::current.thread];
}
inline void close_copies() {
  own_copy_groups().push_back(std::move(own_copies()));
  own_copies().clear();
}
template <int kGroups>
void await_copies_but() {
  std::deque<std::vector<Copy>>& groups = own_copy_groups();
  for (; groups.size() > kGroups; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      std::memcpy(__builtin_assume_aligned(copy.to, 16), __builtin_assume_aligned(copy.from, 16),
                  16);
    }
  }
}

/// Copies of rows: done as late as they may be, so that who does not wait finds nothing.
struct RowCopy {
  void* to;
  const void* from;
  int bytes;
  void check() const {
    const auto places = reinterpret_cast<std::uintptr_t>(to) |
                        reinterpret_cast<std::uintptr_t>(from) | static_cast<unsigned>(bytes);
    if (places % 16 != 0 || bytes <= 0) std::abort();
  }
  void run() const {
    check();
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};
/// By barrier, of this block.
inline std::map<SharedAt, RowCopy>& brought_copies() {
  static thread_local std::map<SharedAt, RowCopy> copies;
  return copies;
}
/// What has been read of a thread's groups, but is not there yet.
struct ReadCopy {
  void* to;
  std::vector<std::byte> bytes;
  explicit ReadCopy(const RowCopy& copy)
      : to(copy.to),
        bytes(static_cast<const std::byte*>(copy.from),
              static_cast<const std::byte*>(copy.from) + copy.bytes) {
    copy.check();
  }
};
/// Copies of a thread, each as late as it is awaited: those that are in groups, the last of which is open, and those that were
/// read.
struct OwnRowCopies {
  std::vector<RowCopy> copies;            // Of all groups.
  std::vector<std::size_t> groups = {0};  // How many of them are in each.
  std::vector<ReadCopy> read;
};
inline OwnRowCopies& own_row_copies() {
  static thread_local std::vector<OwnRowCopies> copies(kThreadsMax);
  return copies[gpu_simulator::current.thread];
}
inline std::uint64_t& phases(SharedAt barrier) {
  return *reinterpret_cast<std::uint64_t*>(barrier);
}
inline void prepare_arrival(SharedAt barrier) {
  phases(barrier) = 0;
  brought_copies().erase(barrier);
}
inline void bring(SharedAt to, const void* global, int bytes, SharedAt barrier) {
  if (!brought_copies().try_emplace(barrier, RowCopy{to, global, bytes}).second) std::abort();
}
inline bool arrived(SharedAt barrier, unsigned parity) {
  const auto found = brought_copies().find(barrier);
  if (found != brought_copies().end()) {
    found->second.run();
    brought_copies().erase(found);
    ++phases(barrier);
  }
  const bool is = phases(barrier) % 2 != parity;
  if (!is) gpu_simulator::poll();
  return is;
}
inline void take_out(void* global, SharedAt from, int bytes) {
  OwnRowCopies& own = own_row_copies();
  own.copies.push_back({global, from, bytes});
  ++own.groups.back();
}
inline void close_group() {
  own_row_copies().groups.push_back(0);
}
template <int kGroups>
void await_groups_read() {
  OwnRowCopies& own = own_row_copies();
  if (own.groups.size() <= kGroups + 1) return;
  const auto last = own.groups.end() - (kGroups + 1);
  const auto end =
      own.copies.begin() + std::accumulate(own.groups.begin(), last, std::ptrdiff_t{0});
  for (auto copy = own.copies.begin(); copy != end; ++copy) own.read.emplace_back(*copy);
  own.copies.erase(own.copies.begin(), end);
  own.groups.erase(own.groups.begin(), last);
}
inline void await_groups() {
  await_groups_read<0>();
  std::vector<ReadCopy>& read = own_row_copies().read;
  for (const ReadCopy& copy : read) std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
  read.clear();
}
inline void order_copies() {}
/// By all threads, before they copy rows.
inline void begin_copies() {
  OwnRowCopies& own = own_row_copies();
  own.copies.clear();
  own.groups.assign(1, 0);
  own.read.clear();
}

inline std::uint32_t multiprocessor() {
  return blockIdx.x;
}

inline std::uint64_t now_ns() {
  return gpu_simulator::now();
}

inline void about_to_look(int peer) {
  if (auto* const hook = gpu_simulator::about_to_look.load()) hook(peer);
}

/// A kernel's parameter: not for every thread anew.
template <typename T>
using Parameter = const T&;

template <typename... Args>
cudaError_t launch_in_place(const cudaLaunchConfig_t& config, void (*kernel)(Args...),
                            const std::type_identity_t<std::remove_cvref_t<Args>>&... args) {
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Polls take long here.
inline constexpr unsigned kPollsPerLook = 8;
inline constexpr unsigned kPollsCounted = 4;
inline constexpr std::uint64_t kGraceNs = 50'000'000;
/// For how long a ferry that has nothing to carry looks for more; where more is expected; and how old it gets.
inline constexpr std::uint64_t kFerryIdleNs = 5'000;
inline constexpr std::uint64_t kFerryExpectsNs = 500'000;
inline constexpr std::uint64_t kFerryLifeNs = 20'000'000;

/// By all threads, at the beginning of a kernel.
inline void let_next_start() {
  own_copies().clear();
}
inline void await_previous() {}

}  // namespace sluice::engine::cuda
