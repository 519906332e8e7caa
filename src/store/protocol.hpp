// SPDX-License-Identifier: MIT
//
// What travels between a SocketStore and its server:
//
//   frame   := length:u32 payload            length is that of the payload
//   request := id:u64 operation:u8 fields    the first one of a connection is a hello,
//                                            the last one of a client that is done a goodbye;
//                                            the last fields of a get_all are its keys
//   reply   := id:u64 status value number changed
//
// Ids rise. A request makes an earlier one of its connection that still waits void, and a client
// skips replies to earlier ids, so a wait that ran into its deadline needs no call to undo it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/status.hpp"
#include "store/address.hpp"
#include "store/store.hpp"

namespace sluice::store {

/// Raised with every change of what travels, but for frames, for where a hello has this number, and for replies: by those a
/// client of another version is told.
inline constexpr std::uint16_t kProtocolVersion = 4;

/// The first request of a connection.
struct Hello {
  /// Which of `clients` this is; both 0 where clients are not counted.
  std::uint32_t client = 0;
  std::uint32_t clients = 0;
  std::uint16_t version = kProtocolVersion;  ///< With another one, the rest means nothing.
  std::string name = {};                     ///< As the address has it.
};

inline constexpr std::size_t kFrameHeaderBytes = sizeof(std::uint32_t);
inline constexpr std::size_t kHelloBytesMax = kNameBytesMax + 64;
/// Two values (compare_and_set), a key, and the numbers around them.
inline constexpr std::size_t kFrameBytesMax = 2 * kValueBytesMax + kKeyBytesMax + 256;

std::string encode_hello(std::uint64_t id, const Hello& hello);
std::string encode_goodbye(std::uint64_t id);
std::string encode_request(std::uint64_t id, const Request& request);
std::string encode_reply(std::uint64_t id, const Reply& reply);

struct DecodedRequest {
  std::uint64_t id = 0;
  std::optional<Hello> hello;
  bool goodbye = false;  // Neither hello nor goodbye: `request` counts.
  Request request;
};
struct DecodedReply {
  std::uint64_t id = 0;
  Reply reply;
};

/// Length of the payload that follows; `mismatch` for one that no side sends.
Result<std::size_t> decode_frame_header(std::string_view header);
/// Payloads, without their frame header. `mismatch` for bytes of any other form.
Result<DecodedRequest> decode_request(std::string_view payload);
Result<DecodedReply> decode_reply(std::string_view payload);

}  // namespace sluice::store
