// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <limits>
#include <string>

#include "base/system_error.hpp"
#include "memory/mapping.hpp"
#include "memory/pages.hpp"

namespace sluice::memory {
namespace {

// A file beyond RLIMIT_FSIZE raises SIGXFSZ, whose default is to kill the process. The kernel sends
// it to the calling thread, so blocking it here and taking what arrived leaves only EFBIG. The others are
// blocked since each ends fallocate(), which begins anew (before Linux 6.12 or so): for a program with a timer it might never
// end.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigemptyset(&file_size_);
    sigaddset(&file_size_, SIGXFSZ);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() {
    const timespec no_wait{};
    if (!was_pending_) sigtimedwait(&file_size_, nullptr, &no_wait);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t file_size_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

int truncate_error(int file, off_t bytes) noexcept {
  while (::ftruncate(file, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

int allocate_error(int file, off_t bytes) noexcept {
  while (::fallocate(file, 0, 0, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Windows up to this size are worth the time (about 3 ms per 2 MiB) that huge pages take to make.
constexpr std::size_t kHugeBytesMax = std::size_t{256} << 20;
// MADV_COLLAPSE of Linux 6.1, which the C library's headers may not have yet.
constexpr int kAdviseCollapse = 25;

// Asks for huge pages, best effort: rows of many kilobytes at random places cost a page walk per
// 4 KiB otherwise. Needs taken memory, and works whatever the system's default is.
void collapse_pages(const base::Descriptor& file, std::size_t bytes) noexcept {
  if (bytes < kHugePageBytes || bytes > kHugeBytesMax) return;
  const Result<Mapping> mapping = Mapping::of_file(file, bytes);
  if (!mapping) return;
  (void)::madvise(mapping->base(), bytes / kHugePageBytes * kHugePageBytes, kAdviseCollapse);
}

}  // namespace

Result<base::Descriptor> create_memory_file(std::size_t bytes, bool committed) {
  const std::size_t rounded = rounded_to_pages(bytes);
  const std::string what = "cannot take " + std::to_string(rounded) + " bytes of shared memory";
  if (rounded > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
    return base::system_status(EFBIG, what);
  }
  base::Descriptor file(::memfd_create("sluice", MFD_CLOEXEC));
  if (!file.open()) return base::system_status(errno, "cannot create a memory file");
  if (rounded == 0) return file;

  const SignalsBlocked blocked;
  const auto length = static_cast<off_t>(rounded);
  int error = truncate_error(file.number(), length);
  if (error == 0 && committed) error = allocate_error(file.number(), length);
  if (error != 0) return base::system_status(error, what);
  if (committed) collapse_pages(file, rounded);
  return file;
}

}  // namespace sluice::memory
