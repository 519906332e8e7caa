// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/kernels.hpp"
#include "memory/cuda/device_pool.hpp"
#include "sluice/status.hpp"

namespace sluice::engine::cuda {

/// What kernels have recorded of themselves.
class Profile {
 public:
  /// Room for the latest operations, about `events_max` events of launches with `blocks` blocks; 0: none are recorded.
  Recording start(memory::DevicePool& pool, std::size_t events_max, int blocks);
  /// What the operations that have ended left. Others may be missing, or there in part.
  Status write(memory::DevicePool& pool, const std::string& path, int rank) const;

 private:
  std::size_t words() const noexcept;

  Recording recording_;
  /// All that were ever given to kernels: graphs may hold them.
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace sluice::engine::cuda
