// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <array>
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
/// Writes one line if `level` is on. Never throws: where there is no memory left the line goes out as it
/// is, without a time.
void log_line(LogLevel level, std::string_view text) noexcept;

/// Formats only what will be written.
template <typename... Arguments>
void log(LogLevel level, fmt::format_string<Arguments...> format,
         Arguments&&... arguments) noexcept {
  if (level > log_level()) return;
  try {
    // Nearly all lines fit, and then nothing is allocated.
    std::array<char, 512> line;
    const fmt::string_view text = format;
    const auto done =
        fmt::vformat_to_n(line.data(), line.size(), text, fmt::make_format_args(arguments...));
    if (done.size <= line.size()) {
      log_line(level, std::string_view(line.data(), done.size));
    } else {
      log_line(level, fmt::vformat(text, fmt::make_format_args(arguments...)));
    }
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
