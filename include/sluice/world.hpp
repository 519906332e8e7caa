// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/export.hpp"
#include "sluice/status.hpp"
#include "sluice/store.hpp"

namespace sluice {

namespace bootstrap {
class Group;
}

struct WorldOptions {
  /// Limit of every wait while ranks join, and of the world's collective calls; of Communicator::create that of the first
  /// gather (the others': CommunicatorOptions::first_deadline). Negative: no limit.
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);
};

/// The ranks that work together. Joining is collective: every rank of the world makes the same
/// call.
///
/// A World is moved, not copied. Calls on one World come from one thread at a time, and its
/// collective calls (all_gather, barrier, split, Communicator::create) come in the same order on
/// every rank. Several worlds may live in one process. The destructor is local: it waits for no
/// peer (but rank 0's, on several nodes without a caller's store, for up to a second, so that the others
/// can read what it has read), and without `leave` peers see this rank as crashed.
class SLUICE_API World {
 public:
  /// Gathers one blob of every rank, in rank order; supplied by a caller that has its own means.
  using AllGather = std::function<Result<std::vector<std::string>>(std::string_view blob)>;

  /// Joins from a launcher's environment: SLUICE_RANK/SLUICE_SIZE/SLUICE_RENDEZVOUS, torchrun,
  /// mpirun (Open MPI), srun, in this order. All ways to join give, on all ranks: invalid_argument (rank, size, rendezvous, a
  /// variable), mismatch (ranks say different sizes, or their builds differ), unavailable (a rank ended or gave up),
  /// deadline_exceeded, io_error, out_of_memory.
  static Result<World> from_environment(const WorldOptions& options = {});
  /// Joins `size` ranks at a rendezvous, which rank 0 serves: "tcp:host:port", the port 1 to 65535, "tcp:host:port/name", or
  /// "unix:name" (an abstract socket of one host; nothing stays behind in the file system). A name has at most 100 bytes. Ranks
  /// that come to a port by another name, or by none, are those of another job: they go on to wait for theirs until the deadline.
  static Result<World> join(int rank, int size, std::string_view rendezvous,
                            const WorldOptions& options = {});
  /// Joins with a caller's store, through which ranks of several nodes also make their collective calls
  /// (but not dispatch and combine) for as long as the world lasts. The same store is for one world at a
  /// time: for the next one when all ranks have joined, and on several nodes left; for none that comes
  /// after a join that failed, or a rank that ended without leave() (another prefix before the keys makes
  /// another store of it). The World, those split from it, and their communicators own a share of it until they are
  /// destroyed; on one node it is given back when this returns. `failed_precondition` if this rank's keys are there
  /// already, `mismatch` if other ranks have said another size.
  static Result<World> join(int rank, int size, std::shared_ptr<Store> store,
                            const WorldOptions& options = {});
  /// Joins with a caller's all_gather, which is called at most three times, equally often on all ranks,
  /// here only.
  static Result<World> create(int rank, int size, const AllGather& all_gather,
                              const WorldOptions& options = {});
  /// All ranks of a world as threads of this process: element r is to be used by the thread of
  /// rank r. Local call.
  static Result<std::vector<World>> threads(int size, const WorldOptions& options = {});
  /// The same with several nodes: the first node_sizes[0] ranks are one, and so on. Threads of different
  /// nodes share no memory: what they move goes through libfabric, as between machines, or
  /// (SLUICE_NETWORK=memory) through a network within the process that delays and reorders, for tests.
  static Result<std::vector<World>> threads(const std::vector<int>& node_sizes,
                                            const WorldOptions& options = {});

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const noexcept;
  int size() const noexcept;

  /// Collective. One blob of every rank, in rank order; each of at most 256 MiB (longer: invalid_argument on all ranks, and
  /// the world goes on). unavailable: a rank has ended, or was cut short; deadline_exceeded; out_of_memory: this rank was;
  /// failed_precondition: after leave, or in a forked child. When one has failed, later collective calls of the world do, too.
  Result<std::vector<std::string>> all_gather(std::string_view blob);
  /// Collective. Returns when every rank has called it. Fails as all_gather.
  Status barrier();
  /// Collective. Ranks of one color form a new world, ordered by (key, rank). A negative color
  /// takes part and gets failed_precondition.
  Result<World> split(int color, int key);
  /// Announces that this rank makes no more calls, so that peers do not take its end for a crash. On GPUs it comes after the
  /// kernels of its calls (a communicator that is destroyed has waited for them; else synchronise their streams): what they
  /// have not sent by then peers may count as lost.
  /// Waits at most `deadline` for peers of its node to have seen it; rank 0 of several nodes within that also for up to 5 s for
  /// the others, who may still need the store that it serves. deadline_exceeded: it has left all the same, and not all of its node have seen it.
  Status leave(std::chrono::nanoseconds deadline);

  /// For the library itself, and its tests.
  explicit World(std::shared_ptr<bootstrap::Group> group, WorldOptions options);
  const std::shared_ptr<bootstrap::Group>& group() const noexcept { return group_; }

 private:
  std::shared_ptr<bootstrap::Group> group_;
  WorldOptions options_;
};

}  // namespace sluice
