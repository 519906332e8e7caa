// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sluice/status.hpp"

namespace sluice::bench {

/// Bytes that this rank exchanged with other ranks, mean of one operation.
struct Traffic {
  double dispatch_bytes = 0.0;
  double combine_bytes = 0.0;
};

/// What the report makes of a contestant.
enum class Role : std::uint8_t {
  ours,
  peer,          ///< What ours is compared with.
  peer_variant,  ///< Compared with as well, but not what decides.
  floor,         ///< Parts of the peer's work alone.
  late_all,      ///< Ours, where all ranks start every operation late.
  late_one,      ///< Ours, where one rank does, another one each time.
  gemm,          ///< A GEMM, alone and between the halves of our operations; the last one.
};

/// See Statistics.
struct NetworkUse {
  std::vector<std::int64_t> bytes;  ///< Put to every rank, [R].
  std::int64_t first_put_ns = 0;
  std::int64_t last_arrival_ns = 0;

  bool operator==(const NetworkUse&) const = default;
};

/// Something that is timed: Sluice, its peer, or a lower bound. The timing loop knows nothing else.
class Contestant {
 public:
  virtual ~Contestant() = default;

  virtual std::string name() const = 0;
  virtual Role role() const = 0;
  /// How operations reach the device, "graph" or "stream"; empty on the host. Only like is compared
  /// with like.
  virtual std::string way() const { return {}; }
  /// What a reader of its figures must know, such as the version of a library; or nothing.
  virtual std::string about() const { return {}; }
  /// Names of what is timed, in the order in which one iteration runs it. All but
  /// the floor and the GEMM have "dispatch", "combine", "pair".
  virtual std::vector<std::string> operations() const = 0;
  /// Runs one operation on a data set. Collective.
  virtual Status run(int operation, int set) = 0;
  /// Between warm-up and the timed iterations.
  virtual void start_counting() {}
  virtual Traffic traffic() const { return {}; }
  /// On several nodes: what this rank has done with the network by now.
  virtual NetworkUse network_use() const { return {}; }
  /// Poisons the outputs, runs a pair, and returns how many values are wrong. Collective.
  virtual Result<std::int64_t> check(int set) = 0;
  /// Runs `rounds` more pairs with phases recorded and writes them to `path`, if it can. Collective.
  virtual Status profile(int /*rounds*/, const std::string& /*path*/) { return {}; }
};

/// Brings to the device what `queue` queues, in one way or another.
using Submit = std::function<Status(const std::function<Status()>& queue)>;

/// One whose run() may only queue work on a stream.
class QueuedContestant : public Contestant {
 public:
  /// Waits for everything queued, and says whether all of it was complete.
  virtual Status settle() { return {}; }
  /// As check(), with operations queued by `submit`.
  virtual Result<std::int64_t> check(int set, const Submit& submit) = 0;
  /// The same for what a chain of pairs leaves whose last one was on `set`. `chain` queues it.
  virtual Result<std::int64_t> check_chain(int set, const std::function<Status()>& chain) = 0;
  /// Dispatches every set, each into a handle of its own, for combine_alone().
  virtual Status dispatch_sets() { return no_combines(); }
  virtual Status combine_alone(int /*set*/) { return no_combines(); }
  /// How many values of what the latest combine_alone(), of `set`, has left are wrong.
  virtual Result<std::int64_t> check_combine(int /*set*/) { return no_combines(); }
  virtual void start_profile() {}
  virtual Status write_profile(const std::string& /*path*/) { return {}; }
  Result<std::int64_t> check(int set) final {
    return check(set, [](const std::function<Status()>& queue) { return queue(); });
  }

 private:
  /// --combines times Sluice's only.
  Status no_combines() const {
    return {StatusCode::failed_precondition, name() + ": its combines are not timed alone"};
  }
};

inline constexpr int kDispatch = 0;
inline constexpr int kCombine = 1;
inline constexpr int kPair = 2;

}  // namespace sluice::bench
