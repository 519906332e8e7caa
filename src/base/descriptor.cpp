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
class OwnDescriptors {
 public:
  // Never destroyed: descriptors are closed, and processes forked, until the very end.
  static OwnDescriptors& all() noexcept {
    static auto* const own = new OwnDescriptors;
    return *own;
  }

  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }

  // The following while it is locked.

  /// False: for want of memory or descriptors children get it.
  bool note(int number) noexcept {
    const auto index = static_cast<std::size_t>(number);
    if (!nothing_.open()) nothing_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bool noted = handled_ && nothing_.open();
    try {
      if (noted && index >= noted_.size()) noted_.resize(index + 1);
    } catch (const std::bad_alloc&) {
      noted = false;
    }
    if (noted) noted_[index] = true;
    return noted;
  }
  void close(int number) noexcept {
    noted_[static_cast<std::size_t>(number)] = false;
    ::close(number);
  }

 private:
  OwnDescriptors() noexcept
      : handled_(::pthread_atfork([] { all().lock(); }, [] { all().unlock(); },
                                  [] {
                                    all().end_in_child();
                                    all().unlock();
                                  }) == 0) {}

  // Their numbers stay taken: their owners, of which the child has a copy, close them some time.
  void end_in_child() const noexcept {
    for (std::size_t number = 0; number < noted_.size(); ++number) {
      if (noted_[number]) ::dup3(nothing_.number(), static_cast<int>(number), O_CLOEXEC);
    }
  }

  const bool handled_;
  std::mutex mutex_;
  std::vector<bool> noted_;
  // Takes their places in a child: an eventfd that nobody reads or writes.
  Descriptor nothing_;
};

// Before anything forks beside the first use.
[[maybe_unused]] const OwnDescriptors& at_start = OwnDescriptors::all();

}  // namespace

NoFork::NoFork() noexcept {
  OwnDescriptors::all().lock();
}

NoFork::~NoFork() {
  OwnDescriptors::all().unlock();
}

Descriptor::Descriptor(const NoFork& /*meanwhile*/, int number) noexcept
    : number_(number), private_(number >= 0 && OwnDescriptors::all().note(number)) {}

void Descriptor::reset() noexcept {
  if (number_ < 0) return;
  if (std::exchange(private_, false)) {
    const NoFork meanwhile;
    OwnDescriptors::all().close(std::exchange(number_, -1));
  } else {
    ::close(std::exchange(number_, -1));
  }
}

Result<Descriptor> duplicate(const Descriptor& original) {
  if (!original.open()) return Descriptor();
  const auto made = [&] { return ::fcntl(original.number(), F_DUPFD_CLOEXEC, 0); };
  Descriptor copy = original.is_private() ? Descriptor::of_this_process(made) : Descriptor(made());
  if (!copy.open()) return system_status(errno, "cannot duplicate a descriptor");
  return copy;
}

}  // namespace sluice::base
