// SPDX-License-Identifier: MIT
//
// Ranks as threads of one process, or as processes, over the GPUs of this machine in turn.
#include "conformance/scenario.hpp"
#include "support/gpu_main.hpp"
#include "support/gpu_place.hpp"

namespace sluice::conformance {
namespace {

support::RankBody on_a_gpu(const support::RankBody& body) {
  return [&body](World& world, support::Findings& findings) {
    const std::unique_ptr<support::Place> place =
        support::gpu_place(world.rank(), support::longest_wait());
    support::set_place(place.get());
    body(world, findings);
    support::set_place(nullptr);
  };
}

support::RunResult run_on_gpus(int ranks, const support::RankBody& body,
                               const support::RunOptions& options) {
#if defined(SLUICE_RANKS_ARE_PROCESSES)
  return support::run_as_processes(ranks, on_a_gpu(body), options);
#else
  support::prepare_gpu_places();
  return support::run_as_threads(ranks, on_a_gpu(body), options);
#endif
}

}  // namespace

support::RunRanks launcher() {
  return run_on_gpus;
}

}  // namespace sluice::conformance

int main(int argc, char** argv) {
#if defined(SLUICE_RANKS_ARE_PROCESSES)
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count_before_forking);
#else
  return sluice::support::run_gpu_tests(argc, argv, sluice::support::gpu_count);
#endif
}
