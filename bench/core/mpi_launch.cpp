// SPDX-License-Identifier: MIT
#include "mpi_launch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/descriptor.hpp"
#include "base/system_error.hpp"
#include "bootstrap/host_identity.hpp"
#include "node_namespaces.hpp"
#include "run_rank.hpp"

namespace sluice::bench {
namespace {

/// Beside this program (installed), or in the build tree.
std::string find_part(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* place : {".", "../bench/mpi_peer"}) {
    std::string path = (program.parent_path() / place / name).lexically_normal();
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

Status missing(const std::string& name) {
  return {StatusCode::unavailable,
          fmt::format("--peer mpi needs {} beside this program; it is built where CMake finds MPI "
                      "(Debian: libopenmpi-dev, openmpi-bin)",
                      name)};
}

int start(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  execvp(arguments[0], arguments.data());
  return complain(
      Status(StatusCode::unavailable, fmt::format("cannot start mpirun: {}", std::strerror(errno))),
      -1);
}

/// docs/benchmarking.md says why these settings are the peer's best.
std::vector<std::string> mpirun(int ranks) {
  std::vector<std::string> words = {
      "mpirun", "--oversubscribe",    "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
      "-n",     std::to_string(ranks)};
  if (geteuid() == 0) words.insert(words.begin() + 1, "--allow-run-as-root");
  return words;
}

/// Memory for the samples, which ranks on all nodes map by a name that this process's descriptor has.
Result<base::Descriptor> board_file(const Case& bench_case) {
  base::Descriptor file(memfd_create("sluice-bench-board", MFD_CLOEXEC));
  const std::size_t bytes = static_cast<std::size_t>(bench_case.ranks) * board_bytes(bench_case);
  if (file.open() && ftruncate(file.number(), static_cast<off_t>(bytes)) == 0) return file;
  return Status(StatusCode::out_of_memory, fmt::format("cannot share {} bytes for the samples: {}",
                                                       bytes, base::error_text(errno)));
}

/// mpirun on node 0, its daemons elsewhere: by address, since there are no names to look up.
std::vector<std::string> mpirun_on_nodes(const Case& bench_case, const std::string& agent) {
  std::vector<std::string> words = mpirun(bench_case.ranks);
  std::string hosts;
  const std::vector<int> sizes = bench_case.node_sizes();
  for (std::size_t node = 0; node < sizes.size(); ++node) {
    hosts += fmt::format("{}{}:{}", node == 0 ? "" : ",",
                         NodeNamespaces::address(static_cast<int>(node)), sizes[node]);
  }
  words.insert(words.end(), {"--map-by", "slot", "--host", hosts});
  // Shared memory within nodes, TCP between them. Daemons stay in this session: Linux 6.18 lets ranks that
  // yield (mpi_yield_when_idle) starve those of another session for good, where they share processors.
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"plm", "rsh"},
                                    {"plm_rsh_agent", agent},
                                    {"plm_rsh_no_tree_spawn", "1"},
                                    {"orte_leave_session_attached", "1"},
                                    {"pml", "ob1"},
                                    {"btl", "self,vader,tcp"},
                                    {"btl_tcp_if_include", NodeNamespaces::interface()},
                                    {"oob_tcp_if_include", NodeNamespaces::interface()}}) {
    words.insert(words.end(), {"--mca", name, value});
  }
  return words;
}

bool has_ended(const base::Descriptor& process) {
  pollfd ended{.fd = process.number(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) > 0;
}

int run_on_nodes(const BenchOptions& options, const std::string& peer, int argc, char** argv) {
  const Case& bench_case = options.bench_case;
  const std::string agent = find_part("sluice-bench-mpi-agent");
  if (agent.empty()) return complain(missing("sluice-bench-mpi-agent"), -1);
  const Result<NodeNamespaces> nodes = NodeNamespaces::make(bench_case.nodes);
  if (!nodes) {
    return complain(Status(nodes.status().code(), "no namespaces: " + nodes.status().message()),
                    -1);
  }
  const Result<base::Descriptor> board = board_file(bench_case);
  if (!board) return complain(board.status(), -1);

  std::vector<std::string> words = mpirun_on_nodes(bench_case, nodes->outside(agent));
  words.push_back(nodes->outside(peer));
  for (int i = 0; i < argc; ++i) words.emplace_back(argv[i]);
  // Where ranks find what lies outside of their nodes, as long as this process lives.
  std::string root = nodes->outside("/");
  root.pop_back();  // The slash, which paths have.
  words.insert(words.end(),
               {"--outside-board", fmt::format("/proc/{}/fd/{}", getpid(), board->number()),
                "--outside-root", root, "--outside-folder", std::filesystem::current_path()});
  std::string places;
  for (int node = 0; node < bench_case.nodes; ++node) {
    places += fmt::format("{}{}={}", node == 0 ? "" : " ", NodeNamespaces::address(node),
                          nodes->paths(node));
  }
  setenv("SLUICE_BENCH_NODES", places.c_str(), 1);

  // mpirun is the first process of a namespace: the kernel ends its daemons and their ranks with it, and it with this process,
  // whatever ends this process.
  if (unshare(CLONE_NEWPID) != 0) {
    return complain(
        Status(StatusCode::unavailable,
               "no namespaces: cannot make one of processes: " + base::error_text(errno)),
        -1);
  }
  const Result<base::Descriptor> parent = bootstrap::watch_process(getpid());
  if (!parent) return complain(parent.status(), -1);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (has_ended(*parent)) _exit(kExitFailed);
    setenv("SLUICE_NETWORK_ADDRESS", NodeNamespaces::address(0).c_str(), 1);
    const Status entered = nodes->enter(0);
    _exit(entered ? start(std::move(words)) : complain(entered, -1));
  }
  if (pid < 0) {
    return complain(Status(StatusCode::io_error, "cannot start mpirun: " + base::error_text(errno)),
                    -1);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailed;
}

}  // namespace

int run_mpi_peer(const BenchOptions& options, int argc, char** argv) {
  std::string peer = find_part("sluice-bench-mpi");
  if (peer.empty()) return complain(missing("sluice-bench-mpi"), -1);
  if (options.bench_case.nodes > 1) return run_on_nodes(options, peer, argc, argv);
  std::vector<std::string> words = mpirun(options.bench_case.ranks);
  words.push_back(std::move(peer));
  for (int i = 0; i < argc; ++i) words.emplace_back(argv[i]);
  return start(std::move(words));
}

}  // namespace sluice::bench
