// SPDX-License-Identifier: MIT
#include "store/key_value_table.hpp"

#include <charconv>
#include <utility>

namespace sluice::store {
namespace {

// An empty key costs memory too; the figure only has to keep the bound honest.
constexpr std::size_t kEntryBytes = 64;

std::optional<std::int64_t> parse_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Reply refusal(StatusCode code, std::string message) {
  Reply reply;
  reply.status = Status(code, std::move(message));
  return reply;
}

}  // namespace

std::optional<Reply> KeyValueTable::apply(Request& request) {
  if (Status status = check_request(request); !status.ok()) {
    return refusal(status.code(), status.message());
  }
  Reply reply;
  switch (request.operation) {
    case Operation::set: reply.status = put(request.key, request.value); return reply;
    case Operation::get: {
      const auto found = values_.find(request.key);
      if (found == values_.end()) return std::nullopt;
      reply.value = found->second;
      return reply;
    }
    case Operation::add: return add(request);
    case Operation::compare_and_set: return compare_and_set(request);
    case Operation::get_all: return get_all(request);
    case Operation::erase: {
      const auto found = values_.find(request.key);
      if (found == values_.end()) return reply;
      bytes_ -= found->first.size() + found->second.size() + kEntryBytes;
      values_.erase(found);
      reply.changed = true;
      return reply;
    }
  }
  return refusal(StatusCode::invalid_argument, "an operation that no store has");
}

// Where many wait for many, each change costs each of them one look.
std::optional<Reply> KeyValueTable::get_all(Request& request) const {
  while (request.found < request.keys.size()) {
    if (values_.find(request.keys[request.found]) == values_.end()) return std::nullopt;
    ++request.found;
  }
  std::vector<const std::string*> values;
  for (const std::string& key : request.keys) {
    const auto found = values_.find(key);
    if (found == values_.end()) {  // Erased while it waited for others.
      request.found = 0;
      return std::nullopt;
    }
    values.push_back(&found->second);
  }
  Reply reply;
  reply.value = encode_values(values);
  return reply;
}

Status KeyValueTable::put(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const std::size_t before =
      found == values_.end() ? 0 : found->first.size() + found->second.size() + kEntryBytes;
  const std::size_t after = key.size() + value.size() + kEntryBytes;
  if (bytes_ - before + after > kStoreBytesMax) {
    return Status(StatusCode::out_of_memory,
                  "key \"" + key + "\" with " + std::to_string(value.size()) +
                      " bytes does not fit: the store holds " + std::to_string(bytes_) + " of " +
                      std::to_string(kStoreBytesMax) + " bytes");
  }
  bytes_ = bytes_ - before + after;
  values_.insert_or_assign(key, std::move(value));
  return {};
}

Reply KeyValueTable::add(const Request& request) {
  std::int64_t number = 0;
  if (const auto found = values_.find(request.key); found != values_.end()) {
    const auto parsed = parse_number(found->second);
    if (!parsed.has_value()) {
      return refusal(StatusCode::invalid_argument,
                     "add to key \"" + request.key + "\": expected a decimal number, it holds " +
                         std::to_string(found->second.size()) + " other bytes");
    }
    number = *parsed;
  }
  Reply reply;
  if (__builtin_add_overflow(number, request.delta, &reply.number)) {
    return refusal(StatusCode::invalid_argument,
                   "add to key \"" + request.key + "\": " + std::to_string(number) + " + " +
                       std::to_string(request.delta) + " is beyond 64 bits");
  }
  reply.status = put(request.key, std::to_string(reply.number));
  return reply;
}

Reply KeyValueTable::compare_and_set(const Request& request) {
  Reply reply;
  const auto found = values_.find(request.key);
  std::optional<std::string> current;
  if (found != values_.end()) current = found->second;
  if (current != request.expected) {
    reply.value = std::move(current);
    return reply;
  }
  reply.status = put(request.key, request.value);
  if (reply.status.ok()) {
    reply.changed = true;
    reply.value = request.value;
  }
  return reply;
}

}  // namespace sluice::store
