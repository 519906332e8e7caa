// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "node_namespaces.hpp"
#include "support/alone.hpp"
#include "support/caller_stores.hpp"
#include "support/run_ranks.hpp"
#include "support/sanitizers.hpp"

namespace sluice::support {

namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = -1;
  int pipe = -1;
  std::string bytes;
  int exit_status = 0;
  bool killed = false;
};

std::string fresh_rendezvous() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    number = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  }
  char text[40];
  std::snprintf(text, sizeof text, "unix:sluice-test-%016llx",
                static_cast<unsigned long long>(number));
  return text;
}

void write_all(int descriptor, const std::string& bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(descriptor, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // The parent then sees an incomplete report.
    written += static_cast<std::size_t>(n);
  }
}

/// So many, made when they are wanted first, for the rest of the process.
const Result<bench::NodeNamespaces>& namespaces(int nodes) {
  static std::map<int, Result<bench::NodeNamespaces>> made;
  const auto found = made.find(nodes);
  if (found != made.end()) return found->second;
  return made.emplace(nodes, bench::NodeNamespaces::make(nodes)).first->second;
}

/// Where the ranks of one run are, and meet.
class Meeting {
 public:
  explicit Meeting(const std::vector<int>& nodes) : rendezvous_(fresh_rendezvous()) {
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      node_of_.insert(node_of_.end(), static_cast<std::size_t>(nodes[node]),
                      static_cast<int>(node));
    }
    if (std::getenv("SLUICE_TEST_STORE") != nullptr) directory_.emplace();
    if (nodes.size() < 2 || std::getenv("SLUICE_TEST_NETNS") == nullptr) return;
    namespaces_ = &namespaces(static_cast<int>(nodes.size()));
    static int port = 20000;  // Of each run its own: sockets linger.
    rendezvous_ =
        "tcp:" + bench::NodeNamespaces::address(0) + ":" + std::to_string(port++ % 10000 + 20000);
  }
  /// Why there is none.
  Status status() const {
    if (namespaces_ == nullptr || namespaces_->ok()) return {};
    return {namespaces_->status().code(), "no namespaces: " + namespaces_->status().message()};
  }
  /// By the rank's process.
  Status enter_node(int rank) const {
    const int node = node_of_[static_cast<std::size_t>(rank)];
    if (namespaces_ != nullptr) {
      ::setenv("SLUICE_NETWORK_ADDRESS", bench::NodeNamespaces::address(node).c_str(), 1);
      return (*namespaces_)->enter(node);
    }
    if (node_of_.back() > 0) ::setenv("SLUICE_NODE", std::to_string(node).c_str(), 1);
    return {};
  }
  Result<World> join(int rank, int ranks) const {
    WorldOptions options;
    options.deadline = std::chrono::seconds(60);
    if (!directory_) return World::join(rank, ranks, rendezvous_, options);
    return World::join(rank, ranks, std::make_shared<FileStore>(directory_->file("store")),
                       options);
  }

 private:
  std::vector<int> node_of_;  // By rank.
  std::string rendezvous_;
  const Result<bench::NodeNamespaces>* namespaces_ = nullptr;
  std::optional<ScratchDirectory> directory_;
};

void run_child(int rank, int ranks, const Meeting& meeting, const RankBody& body,
               const RunOptions& options, Findings& findings) {
  if (Status status = meeting.enter_node(rank); !status.ok()) {
    findings.add("node: " + status.to_string());
    return;
  }
  Result<World> world = meeting.join(rank, ranks);
  if (!world) {
    findings.add("World::join: " + world.status().to_string());
    return;
  }
  body(*world, findings);
  if (!options.leave) return;
  // On several nodes leave() does not wait for ranks of other nodes, and a process that ends takes with it
  // what they were still to get (docs/relay.md).
  if (node_sizes(ranks).size() > 1) static_cast<void>(world->barrier());
  const Status left = world->leave(std::chrono::seconds(20));
  if (!left.ok()) findings.add("World::leave: " + left.to_string());
}

// Does not return. The child's own copies of the parent's objects are not destroyed.
[[noreturn]] void be_child(int rank, int ranks, const Meeting& meeting, int pipe, pid_t parent,
                           const RankBody& body, const RunOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(3);
  Findings findings;
  run_child(rank, ranks, meeting, body, options, findings);
  write_all(pipe, serialise(findings));
  std::fflush(nullptr);
  // Where leaks are looked for, libfabric's would be found.
  if (options.waits_at_end && !testing::kAddressSanitizer) std::exit(0);
  ::_exit(0);
}

Child start_child(int rank, int ranks, const Meeting& meeting, const RankBody& body,
                  const RunOptions& options, RunResult& result) {
  Child child;
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    result.failures.push_back(std::string("pipe2: ") + std::strerror(errno));
    return child;
  }
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  child.pid = ::fork();
  if (child.pid == 0) {
    ::close(ends[0]);
    be_child(rank, ranks, meeting, ends[1], parent, body, options);
  }
  ::close(ends[1]);
  child.pipe = ends[0];
  if (child.pid < 0) result.failures.push_back(std::string("fork: ") + std::strerror(errno));
  return child;
}

// Reads what comes, until all pipes have ended or the deadline has passed.
void collect(std::vector<Child>& children, Clock::time_point deadline) {
  while (true) {
    std::vector<pollfd> open;
    std::vector<Child*> owners;
    for (Child& child : children) {
      if (child.pipe < 0) continue;
      open.push_back({child.pipe, POLLIN, 0});
      owners.push_back(&child);
    }
    if (open.empty()) return;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    const int ready = ::poll(open.data(), open.size(), static_cast<int>(left));
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(open[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        owners[i]->bytes.append(buffer, static_cast<std::size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        ::close(owners[i]->pipe);
        owners[i]->pipe = -1;
      }
    }
  }
}

// A child whose pipe is still open past the deadline hangs; one that has closed it is about to end.
void reap(std::vector<Child>& children) {
  for (Child& child : children) {
    if (child.pipe >= 0) {
      child.killed = child.pid > 0;
      if (child.killed) ::kill(child.pid, SIGKILL);
      ::close(child.pipe);
    }
  }
  for (Child& child : children) {
    while (child.pid > 0 && ::waitpid(child.pid, &child.exit_status, 0) < 0 && errno == EINTR) {
    }
  }
}

void report_child(int rank, const Child& child, const RunOptions& options, RunResult& result) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  const Report report = parse_report(child.bytes);
  for (const std::string& text : report.texts) result.failures.push_back(prefix + text);
  result.notes.push_back(report.note);
  if (child.killed) {
    result.failures.push_back(prefix + "watchdog: still running after " +
                              std::to_string(options.watchdog.count()) + " ms, killed");
  } else if (WIFSIGNALED(child.exit_status)) {
    result.failures.push_back(prefix + "ended by signal " +
                              std::to_string(WTERMSIG(child.exit_status)));
  } else if (WEXITSTATUS(child.exit_status) != 0) {
    result.failures.push_back(prefix + "exit status " +
                              std::to_string(WEXITSTATUS(child.exit_status)));
  } else if (!report.complete) {
    result.failures.push_back(prefix + "ended without a complete report");
  }
}

}  // namespace

RunResult run_as_processes(int ranks, const RankBody& body, const RunOptions& options) {
  RunResult result;
  const Meeting meeting(node_sizes(ranks));
  if (Status status = meeting.status(); !status.ok()) {
    result.failures.push_back(status.to_string());
    return result;
  }
  std::vector<Child> children;
  wait_until_alone();
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(start_child(rank, ranks, meeting, body, options, result));
  }
  collect(children, Clock::now() + options.watchdog);
  reap(children);
  for (int rank = 0; rank < ranks; ++rank) {
    report_child(rank, children[static_cast<std::size_t>(rank)], options, result);
  }
  return result;
}

}  // namespace sluice::support
