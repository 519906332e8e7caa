// SPDX-License-Identifier: MIT
#include "support/findings.hpp"

#include <cstdint>
#include <cstring>

namespace sluice::support {

namespace {

constexpr std::size_t kKeptMax = 6;

void append(std::string& bytes, const std::string& text) {
  const std::uint64_t length = text.size();
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
}

bool take(const std::string& bytes, std::size_t& at, std::string& text) {
  std::uint64_t length = 0;
  if (bytes.size() - at < sizeof length) return false;
  std::memcpy(&length, bytes.data() + at, sizeof length);
  at += sizeof length;
  if (bytes.size() - at < length) return false;
  text = bytes.substr(at, length);
  at += length;
  return true;
}

}  // namespace

void Findings::add(const std::string& what) {
  ++count_;
  if (kept_.size() < kKeptMax) kept_.push_back(context_ + what);
}

std::vector<std::string> Findings::texts() const {
  std::vector<std::string> texts = kept_;
  const auto more = static_cast<std::size_t>(count_) - kept_.size();
  if (more > 0) texts.push_back("and " + std::to_string(more) + " further findings");
  return texts;
}

std::string serialise(const Findings& findings) {
  std::string bytes;
  const std::vector<std::string> texts = findings.texts();
  append(bytes, std::to_string(texts.size()));
  for (const std::string& text : texts) append(bytes, text);
  append(bytes, findings.note());
  return bytes;
}

Report parse_report(const std::string& bytes) {
  Report report;
  std::size_t at = 0;
  std::string count;
  if (!take(bytes, at, count)) return report;
  for (int i = 0; i < std::stoi(count); ++i) {
    std::string text;
    if (!take(bytes, at, text)) return report;
    report.texts.push_back(text);
  }
  report.complete = take(bytes, at, report.note);
  return report;
}

}  // namespace sluice::support
