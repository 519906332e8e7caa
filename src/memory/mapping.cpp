// SPDX-License-Identifier: MIT
#include "memory/mapping.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "base/system_error.hpp"
#include "memory/pages.hpp"

namespace sluice::memory {
namespace {

std::string bytes_text(const char* verb, std::size_t bytes) {
  return std::string(verb) + " " + std::to_string(bytes) + " bytes";
}

// Takes every page of a mapping now.
Status populate(std::byte* base, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL) return base::system_status(errno, bytes_text("cannot take", bytes));
#endif
  // Kernels before 5.14: a store to each page takes it.
  for (std::size_t at = 0; at < bytes; at += page_bytes()) {
    *static_cast<volatile std::byte*>(base + at) = std::byte{0};
  }
  return {};
}

// Addresses for `bytes`, reserved and starting at a multiple of a huge page; null where there are none.
void* aligned_place(std::size_t bytes) noexcept {
  const std::size_t reserved = bytes + kHugePageBytes;
  void* found =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(found);
  const auto misplaced = reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  const std::size_t before = misplaced == 0 ? 0 : kHugePageBytes - misplaced;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, reserved - before - bytes);
  return begin + before;
}

// Asks for huge pages, best effort: rows of many kilobytes at random places cost a page walk per
// 4 KiB otherwise. Heard where the system's default is `madvise` (private memory) or `advise`
// (shared memory); memory is then taken, when touched, by the huge page.
void prefer_huge_pages(void* base, std::size_t bytes) noexcept {
  // Where pages are larger, huge ones are of 32 MiB or more, as for ARM with 64 KiB: 512 MiB, and taken for a few rows.
  if (bytes >= kHugePageBytes && page_bytes() == 4096) (void)::madvise(base, bytes, MADV_HUGEPAGE);
}

}  // namespace

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

Result<Mapping> Mapping::anonymous(std::size_t bytes, bool committed) {
  const std::size_t rounded = rounded_to_pages(bytes);
  if (rounded == 0) return Mapping();
  // Without NORESERVE the kernel may refuse what is sized for the worst case and never touched.
  const int reserve = committed ? 0 : MAP_NORESERVE;
  void* base = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | reserve, -1, 0);
  if (base == MAP_FAILED) return base::system_status(errno, bytes_text("cannot map", rounded));
  Mapping mapping(static_cast<std::byte*>(base), rounded);
  prefer_huge_pages(base, rounded);
  if (committed) {
    if (Status status = populate(mapping.base(), rounded); !status.ok()) return status;
  }
  return mapping;
}

Result<Mapping> Mapping::of_file(const base::Descriptor& file, std::size_t bytes) {
  const std::size_t rounded = rounded_to_pages(bytes);
  if (rounded == 0) return Mapping();
  void* place = rounded < kHugePageBytes ? nullptr : aligned_place(rounded);
  void* base = ::mmap(place, rounded, PROT_READ | PROT_WRITE,
                      MAP_SHARED | (place != nullptr ? MAP_FIXED : 0), file.number(), 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    if (place != nullptr) ::munmap(place, rounded);
    return base::system_status(error, bytes_text("cannot map", rounded));
  }
  prefer_huge_pages(base, rounded);
  return Mapping(static_cast<std::byte*>(base), rounded);
}

}  // namespace sluice::memory
