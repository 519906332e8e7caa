// SPDX-License-Identifier: MIT
#include "transport/libfabric/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>
#include <optional>

namespace sluice::transport {
namespace {

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
  const bool complete = find(library, "fi_getinfo", functions.getinfo) &&
                        find(library, "fi_freeinfo", functions.freeinfo) &&
                        find(library, "fi_dupinfo", functions.dupinfo) &&
                        find(library, "fi_fabric", functions.fabric) &&
                        find(library, "fi_strerror", functions.strerror) &&
                        find(library, "fi_version", functions.version);
  if (!complete) {
    return Status(StatusCode::unavailable, "libfabric.so.1 lacks functions of libfabric");
  }
  if (FI_VERSION_LT(functions.version(), kFabricVersion)) {
    return Status(StatusCode::unavailable,
                  fmt::format("Sluice was built for libfabric {}.{} or later; seen {}.{}",
                              FI_MAJOR(kFabricVersion), FI_MINOR(kFabricVersion),
                              FI_MAJOR(functions.version()), FI_MINOR(functions.version())));
  }
  return functions;  // Never unloaded: its providers have threads and handlers of their own.
}

}  // namespace

SignalHandlersKept::SignalHandlersKept() noexcept {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &before_[i]);
}

SignalHandlersKept::~SignalHandlersKept() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

Result<const Library*> Library::load() {
  static std::mutex mutex;
  static std::optional<Library> library;
  const std::lock_guard lock(mutex);
  // Where it could not be, as for want of memory, it may be later.
  if (!library) {
    Result<Library> loaded = load_once();
    if (!loaded.ok()) return loaded.status();
    library = *loaded;
  }
  return &*library;
}

Status Library::failure(const std::string& what, long error) const {
  const int number = static_cast<int>(error < 0 ? -error : error);
  return {number == FI_ENOMEM ? StatusCode::out_of_memory : StatusCode::io_error,
          fmt::format("libfabric: {}: {} ({})", what, strerror(number), -number)};
}

}  // namespace sluice::transport
