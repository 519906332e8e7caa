// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// A rank's first words on a connection: a secret that only ranks know, and who it is.
Status say_hello(const base::Descriptor& socket, std::string_view secret, int rank,
                 base::Deadline deadline, const std::string& what);

/// Connections that were accepted and have not said hello yet. Who says something else is dropped.
class Callers {
 public:
  /// same_user: those of other users are dropped at once (unix sockets).
  Callers(const base::Descriptor& listener, std::string secret, bool same_user);

  /// Appends what to wait for.
  void add_entries(std::vector<pollfd>& entries) const;
  /// Deals with what happened to it: `take` gets every rank that has said hello.
  using Take = std::function<void(int rank, base::Descriptor socket)>;
  void step(std::span<const pollfd> entries, const Take& take);

 private:
  struct Caller {
    base::Descriptor socket;
    std::string words;
  };
  void accept();
  bool hear(Caller& caller, const Take& take) const;

  const base::Descriptor& listener_;
  const std::string secret_;
  const bool same_user_;
  std::list<Caller> callers_;
};

}  // namespace sluice::bootstrap
