// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "sluice/store.hpp"

/// Stores as callers write them: with the public header only.
namespace sluice::support {

using std::chrono::nanoseconds;

/// What all of them do, over some way to hold keys for one call.
class CallersStore : public Store {
 public:
  using Keys = std::map<std::string, std::string>;

  Status set(std::string_view key, std::string_view value, nanoseconds /*timeout*/) override {
    with([&](Keys& keys) { keys[std::string(key)] = value; });
    return {};
  }
  Result<std::string> get(std::string_view key, nanoseconds timeout) override {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      std::optional<std::string> value;
      with([&](Keys& keys) {
        if (const auto found = keys.find(std::string(key)); found != keys.end())
          value = found->second;
      });
      if (value) return *value;
      if (timeout.count() >= 0 && std::chrono::steady_clock::now() - start >= timeout) {
        return Status(StatusCode::deadline_exceeded, "no " + std::string(key));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta,
                           nanoseconds /*timeout*/) override {
    std::int64_t sum = delta;
    with([&](Keys& keys) {
      std::string& value = keys[std::string(key)];
      if (!value.empty()) sum += std::stoll(value);
      value = std::to_string(sum);
    });
    return sum;
  }
  Result<Swap> compare_and_set(std::string_view key, const std::optional<std::string>& expected,
                               std::string_view desired, nanoseconds /*timeout*/) override {
    Swap swap;
    with([&](Keys& keys) {
      const auto found = keys.find(std::string(key));
      if (found != keys.end()) swap.value = found->second;
      swap.swapped = swap.value == expected;
      if (!swap.swapped) return;
      keys[std::string(key)] = desired;
      swap.value = desired;
    });
    return swap;
  }
  Result<bool> erase(std::string_view key, nanoseconds /*timeout*/) override {
    bool erased = false;
    with([&](Keys& keys) { erased = keys.erase(std::string(key)) > 0; });
    return erased;
  }

  /// One after the other, whoever calls.
  virtual void with(const std::function<void(Keys&)>& call) = 0;
  Keys all() {
    Keys copy;
    with([&](Keys& keys) { copy = keys; });
    return copy;
  }
};

/// For ranks that are threads.
class MapStore : public CallersStore {
 public:
  void with(const std::function<void(Keys&)>& call) override {
    const std::lock_guard lock(mutex_);
    call(keys_);
  }

 private:
  std::mutex mutex_;
  Keys keys_;
};

/// A file that all processes see, of keys and values with their lengths.
class FileStore final : public CallersStore {
 public:
  explicit FileStore(std::string path) : path_(std::move(path)) {}
  void with(const std::function<void(Keys&)>& call) override;

 private:
  const std::string path_;
};

/// A directory that goes with this object.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice::support
