// SPDX-License-Identifier: MIT
#include "transport/libfabric/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>

namespace sluice::transport {
namespace {

/// Libraries that libfabric brings along install handlers for signals when they are loaded
/// (Omni-Path's for SIGSEGV, to print a backtrace). They are not ours to change.
class SignalHandlersKept {
 public:
  SignalHandlersKept() noexcept {
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~SignalHandlersKept() {
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalHandlersKept(const SignalHandlersKept&) = delete;
  SignalHandlersKept& operator=(const SignalHandlersKept&) = delete;

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL,  SIGABRT,
                                       SIGFPE,  SIGINT, SIGTERM, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> before_{};
};

template <typename Function>
bool find(void* library, const char* name, Function*& out) noexcept {
  out = reinterpret_cast<Function*>(::dlsym(library, name));
  return out != nullptr;
}

Result<Library> load_once() {
  const SignalHandlersKept kept;
  void* const library = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return Status(StatusCode::unavailable,
                  fmt::format("ranks on several nodes need libfabric (Debian: libfabric1): {}",
                              reason != nullptr ? reason : "not found"));
  }
  Library functions;
  if (find(library, "fi_getinfo", functions.getinfo) &&
      find(library, "fi_freeinfo", functions.freeinfo) &&
      find(library, "fi_dupinfo", functions.dupinfo) &&
      find(library, "fi_fabric", functions.fabric) &&
      find(library, "fi_strerror", functions.strerror) &&
      find(library, "fi_version", functions.version)) {
    return functions;  // Never unloaded: its providers have threads and handlers of their own.
  }
  return Status(StatusCode::unavailable,
                "libfabric.so.1 lacks a function of libfabric's interface 1.3");
}

}  // namespace

Result<const Library*> Library::load() {
  static const Result<Library> library = load_once();
  if (!library.ok()) return library.status();
  return &library.value();
}

Status Library::failure(const std::string& what, long error) const {
  const int number = static_cast<int>(error < 0 ? -error : error);
  return {number == FI_ENOMEM ? StatusCode::out_of_memory : StatusCode::io_error,
          fmt::format("libfabric: {}: {} ({})", what, strerror(number), -number)};
}

}  // namespace sluice::transport
