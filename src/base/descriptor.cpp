// SPDX-License-Identifier: MIT
#include "base/descriptor.hpp"

#include <fcntl.h>

#include <cerrno>

#include "base/system_error.hpp"

namespace sluice::base {

Result<Descriptor> duplicate(const Descriptor& original) {
  if (!original.open()) return Descriptor();
  Descriptor copy(::fcntl(original.number(), F_DUPFD_CLOEXEC, 0));
  if (!copy.open()) return system_status(errno, "cannot duplicate a descriptor");
  return copy;
}

}  // namespace sluice::base
