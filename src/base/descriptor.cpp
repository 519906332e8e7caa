// SPDX-License-Identifier: MIT
#include "base/descriptor.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

#include "base/system_error.hpp"

namespace sluice::base {
namespace {

/// Which descriptors are this process's own. Guarded by the mutex, which fork() takes, too: so no child finds one that was
/// made and is not noted, nor one noted that has been closed and may be somebody else's by now.
struct OwnDescriptors {
  std::mutex mutex;
  std::vector<bool> noted;
  // Takes their places in a child: an eventfd that nobody reads or writes.
  const Descriptor nothing{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  OwnDescriptors() {
    ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                     [] {
                       all().end_in_child();
                       all().mutex.unlock();
                     });
  }

  // Never destroyed: descriptors are closed, and processes forked, until the very end.
  static OwnDescriptors& all() {
    static auto* const own = new OwnDescriptors;
    return *own;
  }

  // Their numbers stay taken: their owners, of which the child has a copy, close them some time.
  void end_in_child() const noexcept {
    for (std::size_t number = 0; number < noted.size(); ++number) {
      if (noted[number]) ::dup3(nothing.number(), static_cast<int>(number), O_CLOEXEC);
    }
  }
};

}  // namespace

NoFork::NoFork() {
  OwnDescriptors::all().mutex.lock();
}

NoFork::~NoFork() {
  OwnDescriptors::all().mutex.unlock();
}

bool NoFork::keep(int number) noexcept {
  OwnDescriptors& own = OwnDescriptors::all();
  if (!own.nothing.open()) return false;
  const auto index = static_cast<std::size_t>(number);
  try {
    if (index >= own.noted.size()) own.noted.resize(index + 1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  own.noted[index] = true;
  return true;
}

void NoFork::close(int number) noexcept {
  OwnDescriptors::all().noted[static_cast<std::size_t>(number)] = false;
  ::close(number);
}

void Descriptor::reset() noexcept {
  if (number_ < 0) return;
  if (std::exchange(private_, false)) {
    NoFork().close(std::exchange(number_, -1));
  } else {
    ::close(std::exchange(number_, -1));
  }
}

Result<Descriptor> duplicate(const Descriptor& original) {
  if (!original.open()) return Descriptor();
  Descriptor copy(::fcntl(original.number(), F_DUPFD_CLOEXEC, 0));
  if (!copy.open()) return system_status(errno, "cannot duplicate a descriptor");
  return copy;
}

}  // namespace sluice::base
