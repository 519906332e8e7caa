// SPDX-License-Identifier: MIT
#include "pair_paths.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <vector>

namespace sluice::bench {
namespace {

constexpr int kMessageBytes = 1 << 20;
/// More than daemons may have to tell each other meanwhile, less than the message.
constexpr std::int64_t kCountedBytes = kMessageBytes / 2;
/// The numbers of /proc/net/dev before that of bytes sent.
constexpr int kNumbersBefore = 8;

/// Bytes that have gone out by the interface by now; below 0: there is none of that name.
std::int64_t bytes_out(const std::string& interface) {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name != interface + ":") continue;
    std::int64_t number = 0;
    for (int i = 0; i <= kNumbersBefore; ++i) words >> number;
    return words ? number : -1;
  }
  return -1;
}

}  // namespace

Result<std::string> pair_paths(MPI_Comm comm, const std::string& interface) {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  const int there = bytes_out(interface) >= 0 ? 1 : 0;
  int everywhere = 0;
  MPI_Allreduce(&there, &everywhere, 1, MPI_INT, MPI_MIN, comm);
  if (everywhere == 0) {
    return Status(StatusCode::unavailable, fmt::format("not every rank has a {}", interface));
  }
  std::vector<char> message(kMessageBytes);
  std::string over;
  std::string inside;
  for (int from = 0; from < ranks; ++from) {
    for (int to = from + 1; to < ranks; ++to) {
      MPI_Barrier(comm);
      std::int64_t sent = 0;
      if (rank == from) {
        const std::int64_t before = bytes_out(interface);
        MPI_Send(message.data(), kMessageBytes, MPI_CHAR, to, 0, comm);
        // It is there when the answer is.
        MPI_Recv(message.data(), 1, MPI_CHAR, to, 1, comm, MPI_STATUS_IGNORE);
        sent = bytes_out(interface) - before;
      } else if (rank == to) {
        MPI_Recv(message.data(), kMessageBytes, MPI_CHAR, from, 0, comm, MPI_STATUS_IGNORE);
        MPI_Send(message.data(), 1, MPI_CHAR, from, 1, comm);
      }
      MPI_Bcast(&sent, 1, MPI_INT64_T, from, comm);
      (sent > kCountedBytes ? over : inside) += fmt::format(" {}-{}", from, to);
    }
  }
  const auto or_none = [](const std::string& pairs) { return pairs.empty() ? " none" : pairs; };
  return fmt::format("over {}{}; not over it{}", interface, or_none(over), or_none(inside));
}

}  // namespace sluice::bench
