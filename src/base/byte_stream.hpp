// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sluice::base {

/// Bytes travel as they lie in memory.
static_assert(std::endian::native == std::endian::little);

/// Appends numbers and length-prefixed strings.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
    return *this;
  }
  ByteWriter& put_string(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a ByteWriter wrote. A read beyond the end gives zeros and makes ok() false for good.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) noexcept : bytes_(bytes) {}

  template <typename T>
  T get() noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  std::string get_string() {
    const auto length = get<std::uint64_t>();
    if (length > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    std::string text(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return text;
  }
  bool ok() const noexcept { return ok_; }
  bool at_end() const noexcept { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace sluice::base
