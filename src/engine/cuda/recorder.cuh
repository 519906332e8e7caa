// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"
#include "trace/phase.hpp"

/// Time stamps of what warps do. Kernels for common calls exist twice, with these and without; those
/// where there are other nodes only without.
namespace sluice::engine::cuda {

using trace::Phase;

/// Of one warp in one launch. Records nothing.
template <bool kRecords>
class Recorder {
 public:
  __device__ __forceinline__ explicit Recorder(const Recording& /*recording*/) {}
  __device__ __forceinline__ void ready() {}
  __device__ __forceinline__ void open(protocol::Kind /*kind*/, std::uint64_t /*epoch*/) {}
  __device__ __forceinline__ void mark(Phase /*phase*/) {}
  __device__ __forceinline__ void finish(Role /*role*/) {}
};

/// Records what ends when, if the launch is recorded. The words are read by the host once the launch
/// has ended.
template <>
class Recorder<true> {
 public:
  __device__ explicit Recorder(const Recording& recording)
      : recording_(recording), start_(now_ns()), ready_(start_) {}

  /// What was before this launch has ended.
  __device__ void ready() { ready_ = now_ns(); }
  /// From here on it is known which operation this is.
  __device__ void open(protocol::Kind kind, std::uint64_t epoch) {
    find(kind, epoch);
    if (at_ == nullptr) return;
    add(start_, Recording::kStart);
    add(ready_, static_cast<std::uint32_t>(Phase::wait));
  }
  /// Likewise in a kernel that may be a half of an operation: behind what the other has noted.
  __device__ void join(protocol::Kind kind, std::uint64_t epoch) {
    find(kind, epoch);
    if (at_ == nullptr) return;
    if (*at_ >> 8 == epoch) count_ = static_cast<int>(*at_ & 15U);
    add(start_, Recording::kStart);
  }
  __device__ void mark(Phase phase) {
    if (at_ != nullptr) add(now_ns(), static_cast<std::uint32_t>(phase));
  }
  __device__ void finish(Role role) {
    if (at_ == nullptr) return;
    at_[Recording::kEventsMax + 1] = multiprocessor();
    *at_ = Recording::head(epoch_, role, count_);
  }

 private:
  __device__ void find(protocol::Kind kind, std::uint64_t epoch) {
    const int block = static_cast<int>(blockIdx.x);
    if (recording_.words == nullptr || block >= recording_.blocks || threadIdx.x % 32 != 0) return;
    const auto launches = static_cast<std::uint32_t>(recording_.launches);
    // Of 32 bits: a division of 64 would take as long as what is recorded.
    const std::uint32_t launch =
        static_cast<std::uint32_t>(kind) * launches + static_cast<std::uint32_t>(epoch) % launches;
    const std::int64_t warp =
        (std::int64_t{launch} * recording_.blocks + block) * kBlockWarps + threadIdx.x / 32;
    at_ = recording_.words + warp * Recording::kWords;
    epoch_ = epoch;
  }
  __device__ void add(std::uint64_t time, std::uint32_t what) {
    if (count_ < Recording::kEventsMax) at_[++count_] = Recording::event(time, what);
  }

  const Recording& recording_;
  std::uint64_t* at_ = nullptr;  // Of lane 0.
  std::uint64_t start_;
  std::uint64_t ready_;
  std::uint64_t epoch_ = 0;
  int count_ = 0;
};

}  // namespace sluice::engine::cuda
