// SPDX-License-Identifier: MIT
//
// The only file that includes spdlog. Debian's package is configured for an external fmt; the
// definition says so for other installations.
#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#include "base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "base/environment.hpp"

namespace sluice::base {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::warn: return spdlog::level::warn;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::debug: return spdlog::level::debug;
  }
  return spdlog::level::warn;
}

// A logger of our own, outside spdlog's registry: a program that uses spdlog too keeps its
// settings. Never destroyed, so that destructors of statics may still log.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("sluice", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[%H:%M:%S.%e] [sluice %P] [%l] %v");
    made->set_level(spdlog_level(log_level()));
    made->flush_on(spdlog::level::debug);
    // Called where what its sink throws is caught: on to log_line().
    made->set_error_handler([](const std::string&) { throw; });
    const auto& word = Environment::at_start().get(Variable::log);
    if (word.has_value() && !parse_log_level(*word).has_value()) {
      made->warn("{} is \"{}\", expected error, warn, info or debug: using warn",
                 name_of(Variable::log), *word);
    }
    return made;
  }();
  return *instance;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view word) noexcept {
  if (word == "error") return LogLevel::error;
  if (word == "warn") return LogLevel::warn;
  if (word == "info") return LogLevel::info;
  if (word == "debug") return LogLevel::debug;
  return std::nullopt;
}

LogLevel log_level() noexcept {
  static const LogLevel level = [] {
    const auto& word = Environment::at_start().get(Variable::log);
    return word.has_value() ? parse_log_level(*word).value_or(LogLevel::warn) : LogLevel::warn;
  }();
  return level;
}

void log_line(LogLevel level, std::string_view text) noexcept {
  try {
    logger().log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {  // No memory for it, or for the logger.
    constexpr std::string_view kBefore = "[sluice] ";
    const auto piece = [](std::string_view words) {
      return iovec{const_cast<char*>(words.data()), words.size()};  // Not written through.
    };
    const std::array pieces{piece(kBefore), piece(text), piece("\n")};
    static_cast<void>(::writev(STDERR_FILENO, pieces.data(), pieces.size()) < 0);
  }
}

}  // namespace sluice::base
