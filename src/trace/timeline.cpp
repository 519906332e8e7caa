// SPDX-License-Identifier: MIT
#include "trace/timeline.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace sluice::trace {
namespace {

const char* name_of(Phase phase) noexcept {
  switch (phase) {
    case Phase::quantise: return "quantise";
    case Phase::put: return "put";
    case Phase::count: return "count";
    case Phase::wait: return "wait";
    case Phase::place: return "place";
    case Phase::sum: return "sum";
  }
  return "unknown";
}

}  // namespace

Status Timeline::write(const std::string& path, int rank) const {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                             &std::fclose);
  const auto failed = [&] {
    return Status(StatusCode::io_error,
                  fmt::format("cannot write profile '{}': {}", path, std::strerror(errno)));
  };
  if (!file) return failed();
  // Viewers have 53 bits for a time: less than the nanoseconds since 1970.
  constexpr std::int64_t kBaseUnit = 1'000'000'000'000;
  const std::int64_t base_ns =
      events_.empty() ? 0 : events_.front().begin_ns / kBaseUnit * kBaseUnit;
  fmt::memory_buffer text;
  fmt::format_to(
      std::back_inserter(text),
      "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"dropped_events\":{},\"base_ns\":{}}},"
      "\"traceEvents\":[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},"
      "\"args\":{{\"name\":\"rank {}\"}}}}",
      dropped_, base_ns, rank, rank);
  for (const Event& event : events_) {
    fmt::format_to(
        std::back_inserter(text),
        ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},"
        "\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"epoch\":{},\"role\":\"{}\"{}}}}}",
        name_of(event.phase), event.operation, rank, event.actor.track,
        static_cast<double>(event.begin_ns - base_ns) * 1e-3,
        static_cast<double>(event.end_ns - event.begin_ns) * 1e-3, event.epoch, event.actor.role,
        event.actor.multiprocessor < 0 ? std::string()
                                       : fmt::format(",\"sm\":{}", event.actor.multiprocessor));
  }
  fmt::format_to(std::back_inserter(text), "\n]}}\n");
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) return failed();
  if (std::fflush(file.get()) != 0) return failed();
  return {};
}

}  // namespace sluice::trace
