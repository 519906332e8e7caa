// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "support/place.hpp"

namespace sluice::support {

/// What an executable exits with that needs a GPU where there is none: ctest takes it for skipped.
inline constexpr int kNoGpu = 77;

/// GPUs that this process sees.
int gpu_count();
/// The same for a process that is going to fork ranks, and so must not use CUDA itself.
int gpu_count_before_forking();

/// Takes what GpuPlaces of this process need, before ranks in threads use them.
void prepare_gpu_places();

/// How long ranks on GPUs wait for each other where none of them is lost. Who waits for a peer that never
/// comes holds the machine, so not for long; but a simulated GPU is as slow as the processor that it shares
/// with other tests, and only where a mutant is on are waits without end looked for.
std::chrono::nanoseconds longest_wait();

/// GPU `rank` modulo their number, for the calling thread. Tensors lie in pinned host memory. No wait of
/// its communicators lasts longer than `longest`.
std::unique_ptr<Place> gpu_place(int rank, std::chrono::nanoseconds longest);

}  // namespace sluice::support
