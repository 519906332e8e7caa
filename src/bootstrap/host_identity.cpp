// SPDX-License-Identifier: MIT
#include "bootstrap/host_identity.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "base/environment.hpp"
#include "base/system_error.hpp"

namespace sluice::bootstrap {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

namespace {

// A namespace is known by the number of its file; empty if the system hides it.
std::string namespace_number(const char* path) {
  struct stat facts {};
  return ::stat(path, &facts) == 0 ? std::to_string(facts.st_ino) : std::string();
}

}  // namespace

Result<HostIdentity> this_host() {
  constexpr const char* kBootPath = "/proc/sys/kernel/random/boot_id";
  HostIdentity identity;
  std::ifstream(kBootPath) >> identity.machine;
  if (identity.machine.empty()) {
    return Status(StatusCode::io_error,
                  std::string("cannot read ") + kBootPath +
                      ", which tells whether ranks run on one machine: is /proc mounted?");
  }
  identity.node = identity.machine + "/" + namespace_number("/proc/self/ns/net");
  const base::Environment environment = base::Environment::read();
  if (environment.has(base::Variable::node)) {
    identity.node += "/" + *environment.get(base::Variable::node);
  }
  identity.process_space = namespace_number("/proc/self/ns/pid");
  identity.process = ::getpid();
  return identity;
}

Result<base::Descriptor> watch_process(std::int32_t process) {
#ifdef SYS_pidfd_open
  base::Descriptor watch(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));  // CLOEXEC.
  if (!watch.open() && errno == ESRCH) {
    return base::system_status(ECONNRESET, "process " + std::to_string(process) + " has ended");
  }
  return watch;
#else
  static_cast<void>(process);
  return base::Descriptor();
#endif
}

}  // namespace sluice::bootstrap
