// SPDX-License-Identifier: MIT
#include "store/store.hpp"

#include <utility>

#include "base/byte_stream.hpp"

namespace sluice::store {

std::string encode_values(std::span<const std::string* const> values) {
  base::ByteWriter writer;
  std::size_t bytes = 0;
  for (const std::string* value : values) {
    bytes += sizeof(std::uint64_t) + value->size();
    if (bytes > kValueBytesMax && value != values.front()) break;
    writer.put_string(*value);
  }
  return writer.take();
}

bool decode_values(std::string_view text, std::vector<std::string>& values) {
  base::ByteReader reader(text);
  do {
    values.push_back(reader.get_string());
  } while (reader.ok() && !reader.at_end());
  return reader.ok();
}

Status check_request(const Request& request) {
  if (request.key.empty() || request.key.size() > kKeyBytesMax) {
    return Status(StatusCode::invalid_argument, "a key of " + std::to_string(request.key.size()) +
                                                    " bytes, expected 1 to " +
                                                    std::to_string(kKeyBytesMax));
  }
  std::size_t key_bytes = 0;
  for (const std::string& key : request.keys) {
    key_bytes += sizeof(std::uint64_t) + key.size();
    if (!key.empty() && key.size() <= kKeyBytesMax && key_bytes <= kValueBytesMax) continue;
    return Status(StatusCode::invalid_argument,
                  "keys of which one has " + std::to_string(key.size()) + " bytes and the first " +
                      std::to_string(key_bytes) + " together, expected 1 to " +
                      std::to_string(kKeyBytesMax) + ", and at most " +
                      std::to_string(kValueBytesMax));
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

Result<std::vector<std::string>> Store::get_all(std::span<const std::string> keys,
                                                base::Deadline deadline) {
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    Request request;
    request.operation = Operation::get_all;
    request.keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(values.size()), keys.end());
    request.key = request.keys.front();
    auto reply = call(request, deadline);
    if (reply.status().code() == StatusCode::deadline_exceeded) {
      return Status(StatusCode::deadline_exceeded,
                    std::to_string(keys.size()) + " keys from \"" + keys.front() +
                        "\" on were not all set in the store before the deadline");
    }
    if (!reply.ok()) return reply.status();
    if (!reply->value.has_value() || !decode_values(*reply->value, values) ||
        values.size() > keys.size()) {
      return Status(StatusCode::internal, "the store answered a get of " +
                                              std::to_string(keys.size()) +
                                              " keys with other than their values");
    }
  }
  return values;
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
