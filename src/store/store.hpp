// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "sluice/status.hpp"
#include "sluice/store.hpp"

namespace sluice::store {

inline constexpr std::size_t kKeyBytesMax = 1024;
inline constexpr std::size_t kValueBytesMax = 1 << 20;
/// Of all keys and values of one store together.
inline constexpr std::size_t kStoreBytesMax = std::size_t{256} << 20;

enum class Operation : std::uint8_t { set = 0, get, add, compare_and_set, erase, get_all };

/// One call of a store, as data.
struct Request {
  Operation operation = Operation::set;
  std::string key;
  std::string value;                    // set: the value; compare_and_set: the desired one.
  std::optional<std::string> expected;  // compare_and_set: nothing means "no such key".
  std::int64_t delta = 0;               // add
  std::vector<std::string> keys;        // get_all; `key` is the first of them.
  std::size_t found = 0;                // get_all, while it waits: so many of them are there.

  bool waits() const noexcept {
    return operation == Operation::get || operation == Operation::get_all;
  }
};

/// Its answer; which fields count depends on the operation.
struct Reply {
  Status status;
  std::optional<std::string>
      value;  // get; compare_and_set: the value now, if any; get_all: see encode_values.
  std::int64_t number = 0;  // add: the sum.
  bool changed = false;     // compare_and_set: swapped; erase: there was such a key.
};

/// The library's own stores, with a deadline for each call. Keys are 1 to kKeyBytesMax bytes, values at
/// most kValueBytesMax; others are refused with invalid_argument, and what would not fit into the store
/// with out_of_memory.
class Store : public sluice::Store {
 public:
  Status set(std::string_view key, std::string_view value, base::Deadline deadline);
  Result<std::string> get(std::string_view key, base::Deadline deadline);
  /// Their values, when all are there: one call for what a rank would ask of R others. `deadline_exceeded`
  /// does not say which of them was missing.
  Result<std::vector<std::string>> get_all(std::span<const std::string> keys,
                                           base::Deadline deadline);
  /// A value that is no number, and a sum beyond 64 bits, are refused and nothing changes.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, base::Deadline deadline);
  Result<Swap> compare_and_set(std::string_view key, std::optional<std::string> expected,
                               std::string_view desired, base::Deadline deadline);
  Result<bool> erase(std::string_view key, base::Deadline deadline);

  Status set(std::string_view key, std::string_view value, std::chrono::nanoseconds timeout) final;
  Result<std::string> get(std::string_view key, std::chrono::nanoseconds timeout) final;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta,
                           std::chrono::nanoseconds timeout) final;
  Result<Swap> compare_and_set(std::string_view key, const std::optional<std::string>& expected,
                               std::string_view desired, std::chrono::nanoseconds timeout) final;
  Result<bool> erase(std::string_view key, std::chrono::nanoseconds timeout) final;

 protected:
  /// Carries out one valid request. The Status of the Result is about the way to the store; the one
  /// in the reply is the store's own.
  virtual Result<Reply> perform(const Request& request, base::Deadline deadline) = 0;

 private:
  Result<Reply> call(const Request& request, base::Deadline deadline);
};

/// The answer to a get_all: the values of the first keys, as many as have room, at least one.
std::string encode_values(std::span<const std::string* const> values);
/// False: it is not of that form.
bool decode_values(std::string_view text, std::vector<std::string>& values);

/// Refuses what no store takes. Checked by the caller's side and again by a server.
Status check_request(const Request& request);
/// "key \"join/3\" did not come before the deadline".
Status key_deadline_status(const std::string& key);

}  // namespace sluice::store
