// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace sluice::base {

/// Lines on stderr for the person who runs the program: quiet by default (warnings and errors),
/// more or less by SLUICE_LOG. Nothing on the data path logs.
enum class LogLevel : std::uint8_t { error = 0, warn, info, debug };

/// "error", "warn", "info", "debug"; nothing for other words.
std::optional<LogLevel> parse_log_level(std::string_view word) noexcept;
/// The level of this process: SLUICE_LOG at first use.
LogLevel log_level() noexcept;
/// Writes one line if `level` is on. Never throws: a line that cannot be written is dropped.
void log_line(LogLevel level, std::string_view text) noexcept;

/// Formats only what will be written.
template <typename... Arguments>
void log(LogLevel level, fmt::format_string<Arguments...> format,
         Arguments&&... arguments) noexcept {
  if (level > log_level()) return;
  try {
    log_line(level, fmt::format(format, std::forward<Arguments>(arguments)...));
  } catch (...) {
    log_line(level, "a line that could not be formatted");
  }
}

template <typename... Arguments>
void log_error(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log(LogLevel::error, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void log_warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log(LogLevel::warn, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void log_info(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log(LogLevel::info, format, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void log_debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log(LogLevel::debug, format, std::forward<Arguments>(arguments)...);
}

}  // namespace sluice::base
