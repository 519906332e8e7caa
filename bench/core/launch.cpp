// SPDX-License-Identifier: MIT
#include "launch.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/environment.hpp"
#include "base/random.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/launch_environment.hpp"
#include "node_namespaces.hpp"
#include "run_rank.hpp"
#include "seconds.hpp"

namespace sluice::bench {
namespace {

constexpr std::chrono::seconds kJoinLimit(60);
/// What the others get to end by themselves, with a message of their own, after one rank failed.
constexpr std::chrono::seconds kGrace(5);
constexpr std::chrono::seconds kLeaveLimit(10);
constexpr int kRendezvousPort = 29400;

std::string random_rendezvous() {
  std::uint64_t number = 0;
  if (!base::fill_random(std::as_writable_bytes(std::span(&number, 1))).ok()) {
    number = static_cast<std::uint64_t>(base::now_ns());
  }
  return fmt::format("unix:sluice-bench-{}-{:016x}", getpid(), number);
}

/// Zeroed pages that this process shares with those that it forks; null: there are none. Freed by the end
/// of the process: ranks and watcher use them until then.
std::byte* map_shared(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// Of a run on several nodes, whose ranks share nothing else.
Result<std::byte*> board_memory(const Case& bench_case) {
  if (bench_case.nodes == 1) return static_cast<std::byte*>(nullptr);
  const std::size_t bytes = static_cast<std::size_t>(bench_case.ranks) * board_bytes(bench_case);
  std::byte* memory = map_shared(bytes);
  if (memory != nullptr) return memory;
  return Status(StatusCode::out_of_memory,
                fmt::format("cannot map {} bytes for the samples", bytes));
}

/// One counter per rank, on pages shared with the ranks.
class SignsOfLife {
 public:
  static std::optional<SignsOfLife> make(int ranks) {
    const std::size_t count = static_cast<std::size_t>(ranks);
    std::byte* memory = map_shared(count * sizeof(Progress::Counter));
    if (memory == nullptr) return std::nullopt;
    return SignsOfLife(new (memory) Progress::Counter[count]{}, count);
  }

  Progress::Counter* of(int rank) const { return counters_ + rank; }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count_; ++i) sum += counters_[i].load(std::memory_order_relaxed);
    return sum;
  }

 private:
  SignsOfLife(Progress::Counter* counters, std::size_t count)
      : counters_(counters), count_(count) {}
  Progress::Counter* counters_;
  std::size_t count_;
};

/// What the ranks of one run have in common.
struct Run {
  const Workload& workload;
  const RunSettings& settings;
  std::string rendezvous;
  std::byte* board_memory = nullptr;           ///< See run_sluice.
  const NodeNamespaces* namespaces = nullptr;  ///< If nodes have some.
  pid_t parent = 0;
};

/// Ranks of one node share memory, those of different ones do not.
Status go_to_node(const Run& run, int node) {
  if (run.workload.bench_case.nodes == 1) return {};
  if (run.namespaces == nullptr) {
    setenv("SLUICE_NODE", std::to_string(node).c_str(), 1);
    return {};
  }
  setenv("SLUICE_NETWORK_ADDRESS", NodeNamespaces::address(node).c_str(), 1);
  return run.namespaces->enter(node);
}

[[noreturn]] void run_child(const Run& run, int rank, Progress::Counter* counter) {
  // A rank must not outlive the command, whatever ends the command.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != run.parent) _exit(kExitFailed);
  int exit_status = kExitFailed;
  {
    const Case& bench_case = run.workload.bench_case;
    WorldOptions world_options;
    world_options.deadline = kJoinLimit;
    const Status placed = go_to_node(run, bench_case.node_of(rank));
    Result<World> world =
        placed ? World::join(rank, bench_case.ranks, run.rendezvous, world_options) : placed;
    if (world) {
      Progress progress(counter, rank == 0);
      exit_status = run_sluice(*world, run.board_memory, run.workload, run.settings, progress);
    } else {
      complain(world.status(), rank);
    }
  }
  std::fflush(nullptr);
  _exit(exit_status);
}

/// The processes of one run.
class Children {
 public:
  void add(pid_t pid) { list_.push_back({pid, true}); }

  /// Takes note of ended ones. The first bad end decides the exit status.
  void reap() {
    for (std::size_t rank = 0; rank < list_.size(); ++rank) {
      int status = 0;
      if (!list_[rank].running || waitpid(list_[rank].pid, &status, WNOHANG) <= 0) continue;
      list_[rank].running = false;
      if (WIFSIGNALED(status)) {
        // A rank that this class ended itself has been reported already.
        if (!killed_) {
          fmt::print(stderr, "sluice bench: rank {} (process {}) was killed by signal {} ({})\n",
                     rank, list_[rank].pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
        }
        fail(kExitFailed);
      } else if (WEXITSTATUS(status) != 0) {
        fail(WEXITSTATUS(status));
      }
    }
  }
  bool running() const {
    for (const Child& child : list_) {
      if (child.running) return true;
    }
    return false;
  }
  void kill_all() {
    killed_ = true;
    for (const Child& child : list_) {
      if (child.running) kill(child.pid, SIGKILL);
    }
  }
  void fail(int exit_status) {
    if (exit_status_ == kExitOk) exit_status_ = exit_status;
  }
  int exit_status() const { return exit_status_; }

 private:
  struct Child {
    pid_t pid;
    bool running;
  };
  std::vector<Child> list_;
  bool killed_ = false;
  int exit_status_ = kExitOk;
};

int watch(Children& children, const SignsOfLife& life, double watchdog_s) {
  const std::chrono::nanoseconds limit = duration_of(watchdog_s);
  std::uint64_t seen = life.total();
  base::Deadline silence = base::Deadline::after(limit);
  std::optional<base::Deadline> grace;
  for (children.reap(); children.running(); children.reap()) {
    usleep(5000);
    if (life.total() != seen) {
      seen = life.total();
      silence = base::Deadline::after(limit);
    }
    if (children.exit_status() != kExitOk && !grace) grace = base::Deadline::after(kGrace);
    const bool stuck = silence.expired();
    if (stuck) {
      fmt::print(stderr, "sluice bench: no rank made progress for {} s; ending all of them\n",
                 watchdog_s);
      children.fail(kExitFailed);
    }
    if (stuck || (grace && grace->expired())) {
      children.kill_all();
      silence = base::Deadline::after(limit);
    }
  }
  return children.exit_status();
}

/// The nodes of a launcher's ranks have to be those that a case may have.
Status check_nodes(const routing::NodeMap& nodes, const Case& bench_case) {
  std::string seen;
  std::string expected;
  for (int rank = 0; rank < nodes.ranks(); ++rank) {
    const char* const comma = rank == 0 ? "" : ",";
    seen += fmt::format("{}{}", comma, nodes.node_of(rank));
    expected += fmt::format("{}{}", comma, bench_case.node_of(rank));
  }
  if (seen == expected) return {};
  return Status(
      StatusCode::invalid_argument,
      fmt::format("ranks have to follow each other on their nodes, as many on each or one more "
                  "on the first: expected nodes {}, seen {}",
                  expected, seen));
}

/// Makes the case one of the launcher's ranks and nodes.
Status take_world(const World& world, BenchOptions& options) {
  Case& bench_case = options.bench_case;
  const auto differs = [](const std::string& what) {
    return Status(StatusCode::invalid_argument, what);
  };
  if (options.ranks_given && bench_case.ranks != world.size()) {
    return differs(fmt::format("--ranks is {}, but the launcher started {} ranks", bench_case.ranks,
                               world.size()));
  }
  const routing::NodeMap& nodes = world.group()->nodes();
  if (options.nodes_given && bench_case.nodes != nodes.nodes()) {
    return differs(fmt::format("--nodes is {}, but the launcher's ranks are on {}",
                               bench_case.nodes, nodes.nodes()));
  }
  if (nodes.several() && options.settings.peer_nccl) {
    return differs("--peer nccl is for ranks of one node");
  }
  bench_case.ranks = world.size();
  bench_case.nodes = nodes.nodes();
  if (Status status = check_nodes(nodes, bench_case); !status) return status;
  return bench_case.settle();
}

}  // namespace

bool launched_as_rank() {
  return bootstrap::is_launched(base::Environment::read());
}

int run_from_environment(BenchOptions& options) {
  if (options.settings.netns) {
    return complain(Status(StatusCode::invalid_argument,
                           "--netns starts the ranks itself, and not under a launcher"),
                    -1);
  }
  WorldOptions world_options;
  world_options.deadline = kJoinLimit;
  Result<World> world = World::from_environment(world_options);
  if (!world) return complain(world.status(), -1);
  Status status = take_world(*world, options);
  std::optional<Workload> workload;
  if (status) status = workload.emplace(options.bench_case).check_capacity();
  if (!status) {
    complain(status, world->rank());
    // All ranks come here, and rank 0 may serve what others still join by.
    static_cast<void>(world->leave(kLeaveLimit));
    return kExitFailed;
  }
  Progress progress(nullptr, world->rank() == 0);
  return run_sluice(*world, nullptr, *workload, options.settings, progress);
}

int run_forked(const BenchOptions& options) {
  // Made before the fork: the ranks share the pages.
  const Workload workload(options.bench_case);
  if (Status status = workload.check_capacity(); !status) return complain(status, -1);
  const int ranks = options.bench_case.ranks;
  const std::optional<SignsOfLife> life = SignsOfLife::make(ranks);
  if (!life) {
    return complain(Status(StatusCode::out_of_memory, "cannot map a page for the watchdog"), -1);
  }
  const Result<std::byte*> board = board_memory(options.bench_case);
  if (!board) return complain(board.status(), -1);
  RunSettings settings = options.settings;
  Run run{workload, settings, random_rendezvous(), *board, nullptr, getpid()};
  std::optional<NodeNamespaces> namespaces;
  if (settings.netns) {
    Result<NodeNamespaces> made = NodeNamespaces::make(options.bench_case.nodes);
    if (!made) {
      return complain(Status(made.status().code(), "no namespaces: " + made.status().message()),
                      -1);
    }
    namespaces.emplace(std::move(made).value());
    run.namespaces = &*namespaces;
    // Names of sockets end at a namespace. In a new one every port is free.
    run.rendezvous = fmt::format("tcp:{}:{}", NodeNamespaces::address(0), kRendezvousPort);
    for (std::string* path :
         {&settings.json, &settings.csv, &settings.samples, &settings.profile_dir}) {
      *path = namespaces->outside(*path);
    }
  }
  std::fflush(nullptr);
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) run_child(run, rank, life->of(rank));
    if (pid < 0) {
      const int error = errno;
      children.kill_all();
      while (children.running()) {
        children.reap();
        usleep(1000);
      }
      return complain(Status(StatusCode::io_error,
                             fmt::format("cannot start rank {}: {}", rank, std::strerror(error))),
                      -1);
    }
    children.add(pid);
  }
  return watch(children, *life, options.settings.watchdog_s);
}

int run_threads(const BenchOptions& options) {
  const Workload workload(options.bench_case);
  if (Status status = workload.check_capacity(); !status) return complain(status, -1);
  Result<std::vector<World>> worlds = World::threads(options.bench_case.node_sizes());
  if (!worlds) return complain(worlds.status(), -1);
  const Result<std::byte*> board = board_memory(options.bench_case);
  if (!board) return complain(board.status(), -1);
  std::vector<int> exits(worlds->size(), kExitFailed);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds->size(); ++rank) {
    threads.emplace_back([&, rank] {
      Progress progress(nullptr, rank == 0);
      exits[rank] = run_sluice((*worlds)[rank], *board, workload, options.settings, progress);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int exit_status : exits) {
    if (exit_status != kExitOk) return exit_status;
  }
  return kExitOk;
}

}  // namespace sluice::bench
