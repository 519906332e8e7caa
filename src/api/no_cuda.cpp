// SPDX-License-Identifier: MIT
#include "engine/cuda/cuda_engine.hpp"

/// What stands for the CUDA engine where it is not built.
namespace sluice::engine::cuda {

Status check_built() {
  return {StatusCode::unavailable,
          "device = cuda, but this library was built without CUDA (cmake -DSLUICE_CUDA=ON)"};
}

Result<std::unique_ptr<Engine>> create_engine(EngineConfig /*config*/,
                                              std::shared_ptr<bootstrap::Group> /*group*/,
                                              base::Deadline /*deadline*/) {
  return check_built();
}

}  // namespace sluice::engine::cuda
