// SPDX-License-Identifier: MIT
#pragma once

#include <rdma/fabric.h>

#include <array>
#include <csignal>
#include <string>

#include "sluice/status.hpp"

namespace sluice::transport {

/// Libraries that libfabric brings along install handlers for signals when they are loaded, with it or
/// when its providers are first asked for (Omni-Path's for SIGSEGV, to print a backtrace). They are
/// not ours to change: what was there before is put back.
class SignalHandlersKept {
 public:
  SignalHandlersKept() noexcept;
  ~SignalHandlersKept();
  SignalHandlersKept(const SignalHandlersKept&) = delete;
  SignalHandlersKept& operator=(const SignalHandlersKept&) = delete;

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL,  SIGABRT,
                                       SIGFPE,  SIGINT, SIGTERM, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// The functions of libfabric that are symbols; all others are reached through its objects. Loaded
/// when first asked for, so that a process that talks to no other node loads none of its providers.
struct Library {
  int (*getinfo)(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
                 const fi_info* hints, fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) = nullptr;
  const char* (*strerror)(int error) = nullptr;
  std::uint32_t (*version)() = nullptr;

  static Result<const Library*> load();

  /// "<what>: <libfabric's words for error> (-22)".
  Status failure(const std::string& what, long error) const;
};

/// Of libfabric's interface, as the headers that Sluice is built with have it.
inline constexpr std::uint32_t kFabricVersion = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

}  // namespace sluice::transport
