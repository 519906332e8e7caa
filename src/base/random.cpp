// SPDX-License-Identifier: MIT
#include "base/random.hpp"

#include <sys/random.h>

#include <cerrno>

#include "base/system_error.hpp"

namespace sluice::base {

Status fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return system_status(errno, "cannot get random bytes");
    }
  }
  return {};
}

}  // namespace sluice::base
