// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::bench {

/// Nodes that are apart as machines are: each has a network, a host name, and mounts of its own (with its
/// own /dev/shm and /tmp), in namespaces of Linux. A bridge, in a further network namespace, joins their
/// networks: no address, interface or name of theirs is seen outside. They last as long as this
/// object, and nothing of them stays behind, however its process ends.
class NodeNamespaces {
 public:
  /// `unavailable`, with the reason, where the machine refuses. The calling process has one thread, and is
  /// outside again afterwards.
  static Result<NodeNamespaces> make(int nodes);

  /// From now on the calling process, which has one thread, is on that node.
  Status enter(int node) const;
  /// Of a node, in the network that joins them.
  static std::string address(int node);
  /// That leads there.
  static const char* interface();
  /// By which any process that may can enter a node's namespaces: of the network, the host name, and the
  /// mounts, with commas between them.
  std::string paths(int node) const;
  /// By this name a process on any node reaches a path of outside, as the calling process, outside, names
  /// it now. Empty and "-" stay what they are. Names and paths hold as long as the process that has made the
  /// nodes.
  std::string outside(const std::string& path) const;

 private:
  /// Descriptors of one process's namespaces.
  struct Namespaces {
    base::Descriptor network, host_name, mounts;

    static Result<Namespaces> of_this_process();
    Status enter() const;
  };

  /// Brings the calling process outside again.
  class Return;

  NodeNamespaces() = default;
  Status add_node(int node);

  Namespaces bridge_;
  std::vector<Namespaces> nodes_;
  base::Descriptor root_;  // Of outside.
  pid_t maker_ = 0;
};

}  // namespace sluice::bench
