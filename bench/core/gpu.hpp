// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "contestant.hpp"
#include "measure.hpp"
#include "place.hpp"
#include "sluice/world.hpp"
#include "workload.hpp"

/// What `--engine cuda` needs of CUDA. A build without it has functions that say so.
namespace sluice::bench {

class SluiceContestant;

/// Operations before those that are timed, in one go with them: after these all ranks are on a par,
/// since each waits for the others' data. The common start on the device.
inline constexpr int kHeadOperations = 8;

/// The GPU of a rank: rank modulo the GPUs that its process sees. Only once a process was forked, and by
/// the rank's own thread.
Result<std::unique_ptr<Place>> gpu_place(int rank);

/// Copies by that GPU.
Result<std::unique_ptr<Staging>> gpu_staging(Place& place, std::size_t bytes);

/// Kernels on it that bring so many bytes of an operation to the host, and from there.
Result<std::unique_ptr<Shuttle>> gpu_shuttle(Place& place, std::uint64_t out, std::uint64_t in,
                                             double deadline_s);

/// What is known of that GPU: name, memory, driver.
std::string gpu_text();

/// `contestant` as a graph of many operations and as plain launches, as the case asks for. Both use
/// `place`, which must outlive them.
Contestants launched(std::shared_ptr<QueuedContestant> contestant, Place& place,
                     const Case& bench_case);

/// `ours`, before whose operations ranks do nothing for the case's late_us: all of them, or one after the other
/// (`role` says which). All launch the same kernels. `place` must outlive it.
std::shared_ptr<QueuedContestant> late_ranks(std::shared_ptr<SluiceContestant> ours, Place& place,
                                             const Case& bench_case, int rank, Role role);

/// The same job done the usual way, over NCCL, which is loaded from `library`. Collective. `place`
/// must outlive it.
Result<std::shared_ptr<QueuedContestant>> nccl_peer(World& world, const Workload& workload,
                                                    Place& place, const std::string& library);

/// A GEMM of the case's size on this rank's GPU, by cuBLAS, which is loaded from `library`, or by its usual
/// names if that is empty. `place` must outlive it.
Result<std::unique_ptr<Contestant>> gemm_between(std::shared_ptr<SluiceContestant> ours,
                                                 Place& place, const Case& bench_case, int rank,
                                                 const std::string& library);

/// Times what gemm_between() made, the last of `contestants`; gemm_result.hpp has the series. Collective.
Status measure_gemm(Board& board, const Case& bench_case, const Contestants& contestants,
                    Progress& progress);

/// As measure(), for contestants made by launched(): a sample is the mean of a chain of operations,
/// by events, after a common start on the device; combine is pair - dispatch.
Status measure_launched(Board& board, const Case& bench_case, const Contestants& contestants,
                        Progress& progress);

}  // namespace sluice::bench
