// SPDX-License-Identifier: MIT
#include "node_namespaces.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/system_error.hpp"

namespace sluice::bench {
namespace {

/// Of the address of a node, where nodes are the hosts of one network.
constexpr int kHostsPerByte = 250;
constexpr const char* kInterface = "eth0";
/// What the kernel may take to say that an interface is connected.
constexpr std::chrono::seconds kCarrierLimit(5);

Status refused(const std::string& what, int error) {
  return {StatusCode::unavailable, fmt::format("{}: {}", what, base::error_text(error))};
}

Result<base::Descriptor> open_path(const char* path, int flags) {
  base::Descriptor file(::open(path, flags | O_CLOEXEC));
  if (!file.open()) return refused(fmt::format("cannot open {}", path), errno);
  return file;
}

/// Runs `ip` (iproute2) with these words, in the calling process's namespaces.
Status ip(const std::string& words) {
  // Where it is installed is often not in a user's path.
  const std::string command = "PATH=\"$PATH:/usr/sbin:/sbin\" ip " + words + " 2>&1";
  std::FILE* output = ::popen(command.c_str(), "re");
  if (output == nullptr) return refused("cannot start ip", errno);
  std::array<char, 256> said{};
  const std::size_t length = std::fread(said.data(), 1, said.size() - 1, output);
  if (::pclose(output) == 0) return {};
  std::string reason(said.data(), length);
  while (!reason.empty() && reason.back() == '\n') reason.pop_back();
  return {StatusCode::unavailable, fmt::format("ip {}: {}", words, reason)};
}

Status mount_own(const char* folder) {
  if (::mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, nullptr) == 0) return {};
  return refused(fmt::format("cannot mount a {} of its own", folder), errno);
}

/// Interfaces are not used before the kernel says so, some time after both ends are up.
Status await_carrier() {
  const base::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return refused("cannot open a socket", errno);
  const base::Deadline deadline = base::Deadline::after(kCarrierLimit);
  for (;;) {
    ifreq request{};
    std::strncpy(request.ifr_name, kInterface, IFNAMSIZ - 1);
    if (::ioctl(socket.number(), SIOCGIFFLAGS, &request) != 0) {
      return refused(fmt::format("cannot look at {}", kInterface), errno);
    }
    if ((request.ifr_flags & IFF_RUNNING) != 0) return {};
    if (deadline.expired()) {
      return {StatusCode::unavailable,
              fmt::format("{} is not connected after {} s", kInterface, kCarrierLimit.count())};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

Result<NodeNamespaces::Namespaces> NodeNamespaces::Namespaces::of_this_process() {
  Namespaces all;
  for (const auto& [path, to] : {std::pair{"/proc/self/ns/net", &all.network},
                                 std::pair{"/proc/self/ns/uts", &all.host_name},
                                 std::pair{"/proc/self/ns/mnt", &all.mounts}}) {
    Result<base::Descriptor> file = open_path(path, O_RDONLY);
    if (!file) return file.status();
    *to = std::move(file).value();
  }
  return all;
}

Status NodeNamespaces::Namespaces::enter() const {
  for (const auto& [file, kind] :
       {std::pair{&network, CLONE_NEWNET}, std::pair{&host_name, CLONE_NEWUTS},
        std::pair{&mounts, CLONE_NEWNS}}) {
    if (::setns(file->number(), kind) != 0) return refused("cannot enter a namespace", errno);
  }
  return {};
}

class NodeNamespaces::Return {
 public:
  Return(Namespaces outside, base::Descriptor folder)
      : outside_(std::move(outside)), folder_(std::move(folder)) {}
  ~Return() {
    // Whoever may leave may come back. Entering mounts has changed the folder.
    static_cast<void>(outside_.enter());
    static_cast<void>(::fchdir(folder_.number()));
  }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;

  const Namespaces& outside() const noexcept { return outside_; }

 private:
  Namespaces outside_;
  base::Descriptor folder_;
};

Result<NodeNamespaces> NodeNamespaces::make(int nodes) {
  NodeNamespaces made;
  made.maker_ = ::getpid();
  Result<base::Descriptor> root = open_path("/", O_PATH | O_DIRECTORY);
  if (!root) return root.status();
  made.root_ = std::move(root).value();
  Result<base::Descriptor> folder = open_path(".", O_PATH | O_DIRECTORY);
  if (!folder) return folder.status();
  Result<Namespaces> outside = Namespaces::of_this_process();
  if (!outside) return outside.status();
  const Return back(std::move(outside).value(), std::move(folder).value());

  if (::unshare(CLONE_NEWNET) != 0) {
    return refused("cannot make a network namespace (it takes root's rights)", errno);
  }
  Result<Namespaces> bridge = Namespaces::of_this_process();
  if (!bridge) return bridge.status();
  made.bridge_ = std::move(bridge).value();
  for (const char* words : {"link add sluice type bridge", "link set sluice up"}) {
    if (Status status = ip(words); !status) return status;
  }
  for (int node = 0; node < nodes; ++node) {
    if (Status status = made.add_node(node); !status) return status;
    if (Status status = made.bridge_.enter(); !status) return status;
    if (Status status = ip(fmt::format("link set node{} master sluice up", node)); !status) {
      return status;
    }
  }
  for (const Namespaces& node : made.nodes_) {
    if (Status status = node.enter(); !status) return status;
    if (Status status = await_carrier(); !status) return status;
  }
  return made;
}

// Leaves the process on the node.
Status NodeNamespaces::add_node(int node) {
  if (::unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) != 0) {
    return refused("cannot make namespaces", errno);
  }
  // Otherwise what is mounted here would appear outside as well.
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return refused("cannot make mounts private", errno);
  }
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    if (Status status = mount_own(folder); !status) return status;
  }
  const std::string name = fmt::format("node{}", node);
  if (::sethostname(name.data(), name.size()) != 0) return refused("cannot set a host name", errno);
  for (const std::string& words :
       {std::string("link set lo up"),
        fmt::format("link add {} type veth peer name {} netns /proc/{}/fd/{}", kInterface, name,
                    ::getpid(), bridge_.network.number()),
        fmt::format("address add {}/16 dev {}", address(node), kInterface),
        fmt::format("link set {} up", kInterface)}) {
    if (Status status = ip(words); !status) return status;
  }
  Result<Namespaces> own = Namespaces::of_this_process();
  if (!own) return own.status();
  nodes_.push_back(std::move(own).value());
  return {};
}

Status NodeNamespaces::enter(int node) const {
  return nodes_[static_cast<std::size_t>(node)].enter();
}

std::string NodeNamespaces::address(int node) {
  return fmt::format("10.77.{}.{}", node / kHostsPerByte, node % kHostsPerByte + 1);
}

const char* NodeNamespaces::interface() {
  return kInterface;
}

std::string NodeNamespaces::paths(int node) const {
  const Namespaces& of = nodes_[static_cast<std::size_t>(node)];
  return fmt::format("/proc/{0}/fd/{1},/proc/{0}/fd/{2},/proc/{0}/fd/{3}", maker_,
                     of.network.number(), of.host_name.number(), of.mounts.number());
}

std::string NodeNamespaces::outside(const std::string& path) const {
  if (path.empty() || path == "-") return path;
  // A descriptor of a folder leads to the mounts that it was opened among.
  return fmt::format("/proc/{}/fd/{}{}", maker_, root_.number(),
                     std::filesystem::absolute(path).string());
}

}  // namespace sluice::bench
