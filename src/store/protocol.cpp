// SPDX-License-Identifier: MIT
#include "store/protocol.hpp"

#include <utility>

#include "base/byte_stream.hpp"

namespace sluice::store {
namespace {

using base::ByteReader;
using base::ByteWriter;

constexpr std::uint8_t kHelloOperation = 255;
constexpr std::uint8_t kGoodbyeOperation = 254;
// A hello's first word: "sluice", and the version of this protocol in the upper 16 bits.
constexpr std::uint64_t kName = 0x6563'6975'6c73;
constexpr int kVersionShift = 48;

std::string framed(const std::string& payload) {
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(payload.size()));
  return writer.take() + payload;
}

void put_optional(ByteWriter& writer, const std::optional<std::string>& text) {
  writer.put(static_cast<std::uint8_t>(text.has_value() ? 1 : 0));
  if (text.has_value()) writer.put_string(*text);
}

std::optional<std::string> get_optional(ByteReader& reader) {
  if (reader.get<std::uint8_t>() == 0) return std::nullopt;
  return reader.get_string();
}

Status bad_message(const char* what, std::size_t bytes) {
  return Status(StatusCode::mismatch, std::string(what) + " of " + std::to_string(bytes) +
                                          " bytes that is not of this version's store protocol");
}

}  // namespace

std::string encode_hello(std::uint64_t id, const Hello& hello) {
  ByteWriter writer;
  const std::uint64_t magic = static_cast<std::uint64_t>(hello.version) << kVersionShift | kName;
  writer.put(id).put(kHelloOperation).put(magic).put(hello.client).put(hello.clients);
  writer.put_string(hello.name);
  return framed(writer.take());
}

std::string encode_goodbye(std::uint64_t id) {
  ByteWriter writer;
  writer.put(id).put(kGoodbyeOperation);
  return framed(writer.take());
}

std::string encode_request(std::uint64_t id, const Request& request) {
  ByteWriter writer;
  writer.put(id).put(static_cast<std::uint8_t>(request.operation));
  writer.put_string(request.key).put_string(request.value).put(request.delta);
  put_optional(writer, request.expected);
  for (const std::string& key : request.keys) writer.put_string(key);
  return framed(writer.take());
}

std::string encode_reply(std::uint64_t id, const Reply& reply) {
  ByteWriter writer;
  writer.put(id).put(static_cast<std::uint8_t>(reply.status.code()));
  writer.put_string(reply.status.message());
  put_optional(writer, reply.value);
  writer.put(reply.number).put(static_cast<std::uint8_t>(reply.changed ? 1 : 0));
  return framed(writer.take());
}

Result<std::size_t> decode_frame_header(std::string_view header) {
  ByteReader reader(header);
  const std::size_t length = reader.get<std::uint32_t>();
  if (!reader.ok() || length == 0 || length > kFrameBytesMax) {
    return bad_message("a frame", length);
  }
  return length;
}

Result<DecodedRequest> decode_request(std::string_view payload) {
  ByteReader reader(payload);
  DecodedRequest decoded;
  decoded.id = reader.get<std::uint64_t>();
  const auto operation = reader.get<std::uint8_t>();
  if (operation == kHelloOperation) {
    const auto magic = reader.get<std::uint64_t>();
    Hello hello;
    hello.version = static_cast<std::uint16_t>(magic >> kVersionShift);
    const bool named = reader.ok() && (magic & ~(~std::uint64_t{0} << kVersionShift)) == kName;
    const bool known = hello.version == kProtocolVersion;  // Else nobody knows what follows.
    hello.client = reader.get<std::uint32_t>();
    hello.clients = reader.get<std::uint32_t>();
    if (known) hello.name = reader.get_string();
    if (!named || (known && !(reader.ok() && reader.at_end()))) {
      return bad_message("a hello", payload.size());
    }
    decoded.hello = hello;
    return decoded;
  }
  if (operation == kGoodbyeOperation && reader.ok() && reader.at_end()) {
    decoded.goodbye = true;
    return decoded;
  }
  decoded.request.operation = static_cast<Operation>(operation);
  decoded.request.key = reader.get_string();
  decoded.request.value = reader.get_string();
  decoded.request.delta = reader.get<std::int64_t>();
  decoded.request.expected = get_optional(reader);
  const bool several = decoded.request.operation == Operation::get_all;
  while (several && reader.ok() && !reader.at_end()) {
    decoded.request.keys.push_back(reader.get_string());
  }
  if (!reader.ok() || !reader.at_end() || several == decoded.request.keys.empty() ||
      operation > static_cast<std::uint8_t>(Operation::get_all)) {
    return bad_message("a request", payload.size());
  }
  return decoded;
}

Result<DecodedReply> decode_reply(std::string_view payload) {
  ByteReader reader(payload);
  DecodedReply decoded;
  decoded.id = reader.get<std::uint64_t>();
  const auto code = reader.get<std::uint8_t>();
  std::string message = reader.get_string();
  decoded.reply.value = get_optional(reader);
  decoded.reply.number = reader.get<std::int64_t>();
  decoded.reply.changed = reader.get<std::uint8_t>() != 0;
  if (!reader.ok() || !reader.at_end() || code > static_cast<std::uint8_t>(StatusCode::internal)) {
    return bad_message("a reply", payload.size());
  }
  decoded.reply.status = Status(static_cast<StatusCode>(code), std::move(message));
  return decoded;
}

}  // namespace sluice::store
