// SPDX-License-Identifier: MIT
#include "processes.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace moe {

bool started_by_launcher() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("SLUICE_RANK") || (set("RANK") && set("WORLD_SIZE")) || set("OMPI_COMM_WORLD_RANK") ||
         (set("SLURM_PROCID") && set("SLURM_STEP_NUM_TASKS"));
}

int run_processes(int ranks, const std::function<int(int rank)>& body) {
  // What is buffered now would be written by every child again.
  std::fflush(nullptr);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  int failures = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      std::fprintf(stderr, "cannot start rank %d: %s\n", rank, std::strerror(errno));
      for (const pid_t started : children) kill(started, SIGKILL);
      ++failures;
      break;
    }
    if (child == 0) {
      // No rank outlives the program. The parent may be gone before the request is made.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      const int status = body(rank);
      std::fflush(nullptr);
      _exit(status);
    }
    children.push_back(child);
  }
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++failures;
    if (WIFSIGNALED(status)) {
      std::fprintf(stderr, "rank %zu was ended by signal %d\n", rank, WTERMSIG(status));
    } else {
      std::fprintf(stderr, "rank %zu failed with status %d\n", rank, WEXITSTATUS(status));
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace moe
