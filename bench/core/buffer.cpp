// SPDX-License-Identifier: MIT
#include "buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::bench {

Result<Buffer> Buffer::make(std::size_t bytes, Pages pages) {
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(StatusCode::out_of_memory,
                  fmt::format("cannot map {} bytes: {}", length, std::strerror(errno)));
  }
  // A hint: where huge pages are off, ordinary ones do.
  if (pages == Pages::huge) (void)madvise(memory, length, MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(memory), length);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace sluice::bench
