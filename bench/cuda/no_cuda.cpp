// SPDX-License-Identifier: MIT
#include "gpu.hpp"
#include "gpus.hpp"

namespace sluice::bench {

Result<std::unique_ptr<Place>> gpu_place(int /*rank*/) {
  return Status(StatusCode::unavailable, "--engine cuda: this build has no CUDA engine");
}
Gpus Gpus::here() {
  return {};
}
std::string gpu_text() {
  return {};
}
Contestants launched(std::shared_ptr<QueuedContestant> /*contestant*/, Place& /*place*/,
                     const Case& /*bench_case*/) {
  return {};
}
std::shared_ptr<QueuedContestant> late_ranks(std::shared_ptr<SluiceContestant> /*ours*/,
                                             Place& /*place*/, const Case& /*bench_case*/,
                                             int /*rank*/, Role /*role*/) {
  return nullptr;
}
Result<std::shared_ptr<QueuedContestant>> nccl_peer(World& /*world*/, const Workload& /*workload*/,
                                                    Place& /*place*/,
                                                    const std::string& /*library*/) {
  return Status(StatusCode::unavailable, "this build has no CUDA engine");
}
Status measure_launched(Board& /*board*/, const Case& /*bench_case*/,
                        const Contestants& /*contestants*/, Progress& /*progress*/) {
  return {StatusCode::unavailable, "this build has no CUDA engine"};
}
Result<std::unique_ptr<Contestant>> gemm_between(std::shared_ptr<SluiceContestant> /*ours*/,
                                                 Place& /*place*/, const Case& /*bench_case*/,
                                                 int /*rank*/, const std::string& /*library*/) {
  return Status(StatusCode::unavailable, "this build has no CUDA engine");
}
Status measure_gemm(Board& /*board*/, const Case& /*bench_case*/,
                    const Contestants& /*contestants*/, Progress& /*progress*/) {
  return {StatusCode::unavailable, "this build has no CUDA engine"};
}

}  // namespace sluice::bench
