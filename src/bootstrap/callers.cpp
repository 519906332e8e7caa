// SPDX-License-Identifier: MIT
#include "bootstrap/callers.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "store/socket.hpp"

namespace sluice::bootstrap {
namespace {

// Beyond this the oldest is dropped: ranks say hello at once, so it is a stranger.
constexpr std::size_t kCallersMax = 512;

std::string hello_of(std::string_view secret, std::int32_t rank) {
  std::string words(secret);
  words.resize(secret.size() + sizeof(rank));
  std::memcpy(words.data() + secret.size(), &rank, sizeof(rank));  // x86 and ARM: little-endian
  return words;
}

}  // namespace

Status say_hello(const base::Descriptor& socket, std::string_view secret, int rank,
                 base::Deadline deadline, const std::string& what) {
  return store::send_all(socket, hello_of(secret, rank), deadline, what);
}

Callers::Callers(const base::Descriptor& listener, std::string secret, bool same_user)
    : listener_(listener), secret_(std::move(secret)), same_user_(same_user) {}

void Callers::add_entries(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.number(), POLLIN, 0});
  for (const Caller& caller : callers_) entries.push_back({caller.socket.number(), POLLIN, 0});
}

void Callers::step(std::span<const pollfd> entries, const Take& take) {
  std::size_t entry = 1;
  for (auto caller = callers_.begin(); caller != callers_.end(); ++entry) {
    const bool keep = entries[entry].revents == 0 || hear(*caller, take);
    caller = keep ? std::next(caller) : callers_.erase(caller);
  }
  if (entries[0].revents != 0) accept();
}

void Callers::accept() {
  base::Descriptor socket = store::accept_from(listener_);
  if (!socket.open()) {
    // Out of descriptors: the listener stays readable, so do not spin until the deadline.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
  if (same_user_) {
    const auto credentials = store::peer_credentials(socket);
    if (!credentials.ok() || !credentials.value().same_user) return;
  }
  if (callers_.size() == kCallersMax) callers_.pop_front();
  callers_.push_back({std::move(socket), {}});
}

// False: the caller is done with, as a rank or as a stranger.
bool Callers::hear(Caller& caller, const Take& take) const {
  const std::size_t whole = secret_.size() + sizeof(std::int32_t);
  std::array<char, 64> bytes{};
  const std::size_t room = std::min(bytes.size(), whole - caller.words.size());
  const ssize_t got = ::recv(caller.socket.number(), bytes.data(), room, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  caller.words.append(bytes.data(), static_cast<std::size_t>(got));
  if (caller.words.size() < whole) return true;
  if (!caller.words.starts_with(secret_)) return false;
  std::int32_t rank = 0;
  std::memcpy(&rank, caller.words.data() + secret_.size(), sizeof(rank));
  take(rank, std::move(caller.socket));
  return false;
}

}  // namespace sluice::bootstrap
