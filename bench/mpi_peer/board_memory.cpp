// SPDX-License-Identifier: MIT
#include "board_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/descriptor.hpp"
#include "base/system_error.hpp"

namespace sluice::bench {

Status BoardMemory::allocate(std::size_t bytes, int ranks) {
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_);
  int on_node = 0;
  MPI_Comm_size(node_, &on_node);
  if (on_node != ranks) {
    return {StatusCode::invalid_argument,
            fmt::format("all {} ranks must be on one host, {} are", ranks, on_node)};
  }
  void* own = nullptr;
  const int code = MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, node_,
                                           &own, &window_);
  if (code != MPI_SUCCESS) {
    return {StatusCode::out_of_memory, fmt::format("cannot share {} bytes", bytes)};
  }
  std::memset(own, 0, bytes);
  for (int rank = 0; rank < ranks; ++rank) {
    MPI_Aint size = 0;
    int unit = 0;
    void* base = nullptr;
    MPI_Win_shared_query(window_, rank, &size, &unit, &base);
    pieces_.push_back(static_cast<std::byte*>(base));
  }
  MPI_Barrier(node_);
  return {};
}

Status BoardMemory::map(const std::string& path, std::size_t bytes, int ranks) {
  const base::Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) {
    return {StatusCode::io_error, fmt::format("cannot open {}: {}", path, base::error_text(errno))};
  }
  mapped_bytes_ = bytes * static_cast<std::size_t>(ranks);
  void* memory =
      ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) {
    return {StatusCode::out_of_memory,
            fmt::format("cannot map {} bytes: {}", mapped_bytes_, base::error_text(errno))};
  }
  mapped_ = memory;
  for (int rank = 0; rank < ranks; ++rank) {
    pieces_.push_back(static_cast<std::byte*>(memory) + static_cast<std::size_t>(rank) * bytes);
  }
  return {};
}

BoardMemory::~BoardMemory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
  if (node_ != MPI_COMM_NULL) MPI_Comm_free(&node_);
}

}  // namespace sluice::bench
