// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "sluice/status.hpp"

/// Functions of libraries that are there or not when the program runs.
namespace sluice::bench {

/// A null pointer if the library has none.
template <typename Function>
void find_function(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

/// `option`: what needs it, for the message.
template <typename Function>
Status require_function(void* library, const char* option, const std::string& path,
                        const char* name, Function*& function) {
  find_function(library, name, function);
  if (function != nullptr) return {};
  return Status(StatusCode::unavailable, fmt::format("{}: {} has no {}", option, path, name));
}

}  // namespace sluice::bench
