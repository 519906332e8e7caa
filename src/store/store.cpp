// SPDX-License-Identifier: MIT
#include "store/store.hpp"

#include <utility>

namespace sluice::store {

Status check_request(const Request& request) {
  if (request.key.empty() || request.key.size() > kKeyBytesMax) {
    return Status(StatusCode::invalid_argument, "a key of " + std::to_string(request.key.size()) +
                                                    " bytes, expected 1 to " +
                                                    std::to_string(kKeyBytesMax));
  }
  const std::size_t expected_bytes = request.expected.has_value() ? request.expected->size() : 0;
  for (const std::size_t bytes : {request.value.size(), expected_bytes}) {
    if (bytes <= kValueBytesMax) continue;
    return Status(StatusCode::invalid_argument,
                  "key \"" + request.key + "\": a value of " + std::to_string(bytes) +
                      " bytes, expected at most " + std::to_string(kValueBytesMax));
  }
  return {};
}

Status key_deadline_status(const std::string& key) {
  return Status(StatusCode::deadline_exceeded,
                "key \"" + key + "\" was not set in the store before the deadline");
}

Result<Reply> Store::call(const Request& request, base::Deadline deadline) {
  if (Status status = check_request(request); !status.ok()) return status;
  auto reply = perform(request, deadline);
  if (reply.ok() && !reply->status.ok()) return reply->status;
  return reply;
}

Status Store::set(std::string_view key, std::string_view value, base::Deadline deadline) {
  Request request;
  request.operation = Operation::set;
  request.key = key;
  request.value = value;
  return call(request, deadline).status();
}

Result<std::string> Store::get(std::string_view key, base::Deadline deadline) {
  Request request;
  request.operation = Operation::get;
  request.key = key;
  auto reply = call(request, deadline);
  if (!reply.ok()) return reply.status();
  if (!reply->value.has_value()) {
    return Status(StatusCode::internal, "the store answered a get without a value");
  }
  return std::move(*reply->value);
}

Result<std::int64_t> Store::add(std::string_view key, std::int64_t delta, base::Deadline deadline) {
  Request request;
  request.operation = Operation::add;
  request.key = key;
  request.delta = delta;
  auto reply = call(request, deadline);
  if (!reply.ok()) return reply.status();
  return reply->number;
}

Result<Store::Swap> Store::compare_and_set(std::string_view key,
                                           std::optional<std::string> expected,
                                           std::string_view desired, base::Deadline deadline) {
  Request request;
  request.operation = Operation::compare_and_set;
  request.key = key;
  request.value = desired;
  request.expected = std::move(expected);
  auto reply = call(request, deadline);
  if (!reply.ok()) return reply.status();
  return Swap{reply->changed, std::move(reply->value)};
}

Result<bool> Store::erase(std::string_view key, base::Deadline deadline) {
  Request request;
  request.operation = Operation::erase;
  request.key = key;
  auto reply = call(request, deadline);
  if (!reply.ok()) return reply.status();
  return reply->changed;
}

Status Store::set(std::string_view key, std::string_view value, std::chrono::nanoseconds timeout) {
  return set(key, value, base::Deadline::after(timeout));
}

Result<std::string> Store::get(std::string_view key, std::chrono::nanoseconds timeout) {
  return get(key, base::Deadline::after(timeout));
}

Result<std::int64_t> Store::add(std::string_view key, std::int64_t delta,
                                std::chrono::nanoseconds timeout) {
  return add(key, delta, base::Deadline::after(timeout));
}

Result<Store::Swap> Store::compare_and_set(std::string_view key,
                                           const std::optional<std::string>& expected,
                                           std::string_view desired,
                                           std::chrono::nanoseconds timeout) {
  return compare_and_set(key, expected, desired, base::Deadline::after(timeout));
}

Result<bool> Store::erase(std::string_view key, std::chrono::nanoseconds timeout) {
  return erase(key, base::Deadline::after(timeout));
}

}  // namespace sluice::store
