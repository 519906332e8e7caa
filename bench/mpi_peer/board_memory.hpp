// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

#include "sluice/status.hpp"

namespace sluice::bench {

/// The board's memory, from MPI or from a file: it does not depend on what is measured.
class BoardMemory {
 public:
  BoardMemory() = default;
  ~BoardMemory();
  BoardMemory(const BoardMemory&) = delete;
  BoardMemory& operator=(const BoardMemory&) = delete;

  /// Collective; all ranks are on one host.
  Status allocate(std::size_t bytes, int ranks);
  /// The file is as long as all pieces, zeroed, and ranks of other nodes map it too.
  Status map(const std::string& path, std::size_t bytes, int ranks);

  /// One for each rank.
  const std::vector<std::byte*>& pieces() const noexcept { return pieces_; }

 private:
  std::vector<std::byte*> pieces_;
  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace sluice::bench
