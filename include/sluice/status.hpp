// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/export.hpp"

namespace sluice {

/// What kind of failure a Status describes.
enum class StatusCode : std::uint8_t {
  ok = 0,
  invalid_argument,     ///< An argument that the caller can see to be wrong: a refusal.
  mismatch,             ///< Ranks disagree (shape, mode, codec, layout, version).
  unavailable,          ///< A peer or a resource is gone.
  deadline_exceeded,    ///< A wait ran out of time.
  out_of_memory,        ///< Too little memory, or a buffer that cannot hold what must go into it.
  io_error,             ///< The operating system or a launcher said no.
  failed_precondition,  ///< The call is legal, but not now (halves out of order, after leave).
  unimplemented,        ///< Legal by the design, not built yet.
  internal,             ///< A broken invariant of the library itself.
};

SLUICE_API std::string_view to_string(StatusCode code) noexcept;

/// The outcome of a call: a code, and for failures a sentence that says what was wrong, what was
/// expected and what was seen. Nothing in Sluice throws across the public API.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == StatusCode::ok; }
  explicit operator bool() const noexcept { return ok(); }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  /// "invalid_argument: x has 7 columns, expected hidden = 16".
  SLUICE_API std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Status(StatusCode::internal, "Result made from an ok Status");
  }

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }

  /// The value. Only when ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace sluice
