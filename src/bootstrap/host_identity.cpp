// SPDX-License-Identifier: MIT
#include "bootstrap/host_identity.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "base/environment.hpp"
#include "base/system_error.hpp"
#include "store/socket.hpp"

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

std::string_view network_of_node(std::string_view node) {
  const std::size_t machine = node.find('/');
  return machine == node.npos ? node : node.substr(0, node.find('/', machine + 1));
}

std::string routed_address() {
  // To an address of documentation (RFC 5737), to which nothing is sent.
  const base::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in far{};
  far.sin_family = AF_INET;
  far.sin_port = htons(9);
  far.sin_addr.s_addr = htonl(0xC0000201);
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&far), sizeof(far)) == 0) {
    const auto own = store::local_address(socket);
    if (own.ok()) return own->host;
  }
  return "127.0.0.1";
}

Result<HostIdentity> this_host() {
  constexpr const char* kBootPath = "/proc/sys/kernel/random/boot_id";
  HostIdentity identity;
  errno = 0;
  std::ifstream(kBootPath) >> identity.machine;
  if (identity.machine.empty()) {
    const int error = errno;
    const std::string why = error == 0 ? "nothing is there" : base::error_text(error);
    return Status(StatusCode::io_error, std::string("cannot read ") + kBootPath +
                                            ", which tells whether ranks run on one machine: " +
                                            why + (error == ENOENT ? "; is /proc mounted?" : ""));
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
  if (!watch.open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    return base::system_status(errno, "cannot watch process " + std::to_string(process));
  }
  return watch;
#else
  static_cast<void>(process);
  return base::Descriptor();
#endif
}

}  // namespace sluice::bootstrap
