// SPDX-License-Identifier: MIT
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace sluice::testing {

/// Bytes of address space that this process has taken: more with every thread that other tests have had, so that a limit for what
/// a test does must be above it. 0: unknown.
inline rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace sluice::testing
