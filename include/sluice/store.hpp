// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/export.hpp"
#include "sluice/status.hpp"

namespace sluice {

/// A small key-value store by which ranks find each other: implemented by a caller whose processes have
/// one already (a launcher's, etcd, files that all hosts see), and passed to World::join.
///
/// *Keys* are printable ASCII without spaces that begin with "sluice/": less than 100 bytes, and 30 more
/// for each split that a world was made by. *Values* are any bytes, zeros among them: some hundred from the
/// library itself, and on several nodes what the program gives to World::all_gather, cut into values of at most
/// 1 MiB; a store that cannot hold one refuses it.
///
/// *Consistency.* All calls of all ranks on one key take place in one order, which no rank sees
/// otherwise: what was set is found by every call that begins afterwards. Between keys no order is asked
/// for.
///
/// *Waiting.* All calls block. `timeout` is the longest that a call may take: 0: it looks once and does
/// not wait for others; negative: no limit. A call that takes longer makes the library late, not wrong:
/// it looks at its own deadlines between calls. The library waits in get() only, and there for a quarter
/// of a second at first, and two seconds at most, so a store that cannot wait may look again and again, and
/// one that cannot tell in that time what a key holds cannot be joined through.
///
/// *Threads.* For one World calls come one at a time, from the thread that calls the World. An object
/// that is passed to several Worlds, of ranks that are threads or of one rank after another, is called by
/// all their threads at once.
///
/// *Errors.* Whatever Status a call returns, but get()'s deadline_exceeded, ends the World's call with
/// that Status, and an exception ends it with `internal`; in a collective call it ends all later ones, too, and those of
/// other ranks. Only what tidies up (erases keys after ranks have joined or split) and World::leave go on without
/// it. Destructors of Worlds call nothing.
class SLUICE_API Store {
 public:
  /// What compare_and_set() found.
  struct Swap {
    bool swapped = false;
    /// What the key holds now; nothing: no such key.
    std::optional<std::string> value;
  };

  virtual ~Store() = default;

  /// Sets a key, whether it was there or not.
  virtual Status set(std::string_view key, std::string_view value,
                     std::chrono::nanoseconds timeout) = 0;
  /// The value of a key; waits until somebody sets it. `deadline_exceeded` if nobody did in time.
  virtual Result<std::string> get(std::string_view key, std::chrono::nanoseconds timeout) = 0;
  /// Adds to a decimal number (no such key: 0) and returns the sum, in one step.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta,
                                   std::chrono::nanoseconds timeout) = 0;
  /// Sets the key to `desired` if it holds `expected` (nothing: if there is no such key), in one step.
  virtual Result<Swap> compare_and_set(std::string_view key,
                                       const std::optional<std::string>& expected,
                                       std::string_view desired,
                                       std::chrono::nanoseconds timeout) = 0;
  /// Whether there was such a key; now there is none. Without it keys stay behind.
  virtual Result<bool> erase(std::string_view key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace sluice
