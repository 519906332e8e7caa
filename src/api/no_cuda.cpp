// SPDX-License-Identifier: MIT
#include "engine/cuda/cuda_engine.hpp"

/// What stands for the CUDA engine where it is not built.
namespace sluice::engine::cuda {

Result<std::unique_ptr<Engine>> create_engine(EngineConfig /*config*/,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline) {
  return group->agree(
      Status(StatusCode::unavailable,
             "device = cuda, but this library was built without CUDA (cmake -DSLUICE_CUDA=ON)"),
      deadline);
}

}  // namespace sluice::engine::cuda
