// SPDX-License-Identifier: MIT
#include "tokeniser.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "random.hpp"

namespace moe {
namespace {

/// Bytes of words: ASCII letters and digits, and everything beyond ASCII.
bool is_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z');
}

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

bool read_text(const std::string& path, std::string& text, std::string& error) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (file && !text.empty()) return true;
  error = "cannot read text from '" + path +
          "': " + (errno != 0 ? std::strerror(errno) : "the file is empty");
  return false;
}

std::vector<std::int32_t> tokenise(std::string_view text, int vocabulary) {
  std::vector<std::int32_t> tokens;
  std::size_t begin = 0;
  while (begin < text.size()) {
    if (is_space(text[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin + 1;
    while (is_word(text[begin]) && end < text.size() && is_word(text[end])) ++end;
    std::uint64_t hash = 0;
    for (; begin < end; ++begin) hash = mix(hash ^ static_cast<unsigned char>(text[begin]));
    tokens.push_back(static_cast<std::int32_t>(hash % static_cast<std::uint64_t>(vocabulary)));
  }
  return tokens;
}

std::vector<std::int32_t> repeat_to(const std::vector<std::int32_t>& tokens, std::size_t count) {
  std::vector<std::int32_t> repeated(count);
  for (std::size_t i = 0; i < count; ++i) repeated[i] = tokens[i % tokens.size()];
  return repeated;
}

}  // namespace moe
