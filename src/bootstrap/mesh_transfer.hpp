// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "bootstrap/mesh.hpp"

namespace sluice::bootstrap {

struct MessageHeader {
  static constexpr std::uint32_t kMagic = 0x6d6c'7301;

  std::uint32_t magic = kMagic;
  ExchangeKind kind = ExchangeKind::all_gather;
  std::uint8_t has_file = 0;
  std::uint16_t zero = 0;
  std::uint64_t sequence = 0;
  std::uint64_t length = 0;  // Beyond kBlobBytesMax: refused, no bytes follow.
};
static_assert(sizeof(MessageHeader) == 24);

/// starved: the system has too little memory for it just now.
enum class Progress : std::uint8_t { blocked, starved, done, gone, garbled };

/// One message on its way to one peer; never blocks.
class Sending {
 public:
  Sending(const MessageHeader& header, std::string_view blob, const base::Descriptor* file);
  Progress advance(int socket);
  bool done() const noexcept { return sent_ == sizeof(header_) + blob_.size(); }

 private:
  MessageHeader header_;
  std::string_view blob_;
  const base::Descriptor* file_;
  std::size_t sent_ = 0;
};

/// One message on its way from one peer; never blocks, and never reads beyond the message.
class Receiving {
 public:
  Progress advance(int socket, const MessageHeader& expected);
  bool done() const noexcept { return done_; }
  const MessageHeader& header() const noexcept { return header_; }
  Mesh::Message& message() noexcept { return message_; }

 private:
  Progress receive_header(int socket);

  MessageHeader header_;
  std::size_t header_bytes_ = 0;
  Mesh::Message message_;
  std::size_t blob_bytes_ = 0;
  bool done_ = false;
};

}  // namespace sluice::bootstrap
