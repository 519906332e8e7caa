// SPDX-License-Identifier: MIT
#include "support/place.hpp"

#include <cstdlib>
#include <cstring>

namespace sluice::support {
namespace {

constexpr std::size_t kAlignment = 64;

thread_local Place* current = nullptr;

Place& host() {
  static Place instance;
  return instance;
}

}  // namespace

std::shared_ptr<void> Place::allocate(std::size_t bytes) {
  const auto storage = std::make_shared<std::vector<std::byte>>(bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(storage->data());
  void* const aligned = storage->data() + (kAlignment - address % kAlignment) % kAlignment;
  return {storage, aligned};
}

void Place::begin_capture(bool /*alone*/) {
  std::abort();  // Calls on the host are over when they return.
}
std::function<void()> Place::end_capture() {
  std::abort();
}

void Place::write(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void Place::fill(void* to, unsigned char byte, std::size_t bytes) {
  std::memset(to, byte, bytes);
}

std::vector<std::byte> Place::read(const void* from, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  return {begin, begin + bytes};
}

Place& place() {
  return current != nullptr ? *current : host();
}

void set_place(Place* place) {
  current = place;
}

}  // namespace sluice::support
