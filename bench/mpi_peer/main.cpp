// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "machine.hpp"
#include "mpi_peer.hpp"
#include "options.hpp"
#include "peer_floor.hpp"
#include "place.hpp"
#include "run_rank.hpp"
#include "sluice/world.hpp"
#include "sluice_contestant.hpp"

namespace sluice::bench {
namespace {

/// World::create asks its caller for one thing only; MPI has it.
Result<std::vector<std::string>> all_gather(std::string_view blob) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::size_t ranks = static_cast<std::size_t>(size);
  const int length = static_cast<int>(blob.size());
  std::vector<int> lengths(ranks);
  std::vector<int> firsts(ranks);
  int code = MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return Status(StatusCode::io_error, "MPI_Allgather failed");
  int total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    firsts[rank] = total;
    total += lengths[rank];
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  code = MPI_Allgatherv(blob.data(), length, MPI_CHAR, all.data(), lengths.data(), firsts.data(),
                        MPI_CHAR, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) return Status(StatusCode::io_error, "MPI_Allgatherv failed");
  std::vector<std::string> blobs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    blobs.push_back(all.substr(static_cast<std::size_t>(firsts[rank]),
                               static_cast<std::size_t>(lengths[rank])));
  }
  return blobs;
}

/// The board's memory, from MPI: it does not depend on what is measured.
class BoardMemory {
 public:
  Status allocate(std::size_t bytes, int ranks) {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_);
    int on_node = 0;
    MPI_Comm_size(node_, &on_node);
    if (on_node != ranks) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("all {} ranks must be on one host, {} are", ranks, on_node));
    }
    void* own = nullptr;
    const int code = MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, node_,
                                             &own, &window_);
    if (code != MPI_SUCCESS) {
      return Status(StatusCode::out_of_memory, fmt::format("cannot share {} bytes", bytes));
    }
    std::memset(own, 0, bytes);
    for (int rank = 0; rank < ranks; ++rank) {
      MPI_Aint size = 0;
      int unit = 0;
      void* base = nullptr;
      MPI_Win_shared_query(window_, rank, &size, &unit, &base);
      pieces.push_back(static_cast<std::byte*>(base));
    }
    MPI_Barrier(node_);
    return {};
  }
  ~BoardMemory() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    if (node_ != MPI_COMM_NULL) MPI_Comm_free(&node_);
  }

  std::vector<std::byte*> pieces;

 private:
  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
};

Status add_peers(const Workload& workload, bool per_rank, Contestants& contestants) {
  Result<std::unique_ptr<MpiPeer>> peer =
      MpiPeer::create(MPI_COMM_WORLD, workload, SendOrder::Rows::per_route);
  if (!peer) return peer.status();
  MpiPeer& usual = **peer;
  contestants.push_back(std::move(peer).value());
  if (per_rank) {
    peer = MpiPeer::create(MPI_COMM_WORLD, workload, SendOrder::Rows::per_rank);
    if (!peer) return peer.status();
    contestants.push_back(std::move(peer).value());
  }
  contestants.push_back(std::make_unique<PeerFloor>(usual));
  return {};
}

Status run(BenchOptions& options, int rank, int& exit_status) {
  // MPI waits for ever for a rank that is frozen.
  Progress progress(nullptr, rank == 0);
  progress.end_process_after(options.settings.watchdog_s);
  if (options.settings.bind) bind_to_processors(rank, options.bench_case.ranks, 1);
  const Case& bench_case = options.bench_case;
  const Workload workload(bench_case);
  if (Status status = workload.check_capacity(); !status) return status;
  Place place;
  Contestants contestants;
  std::unique_ptr<World> world;
  if (!options.settings.peer_alone) {
    Result<World> joined = World::create(rank, bench_case.ranks, all_gather);
    if (!joined) return joined.status();
    world = std::make_unique<World>(std::move(joined).value());
    Result<std::unique_ptr<SluiceContestant>> ours =
        SluiceContestant::create(*world, workload, place);
    if (!ours) return ours.status();
    contestants.push_back(std::move(ours).value());
  }
  const bool per_rank = bench_case.layout == Layout::rank_major;
  if (Status status = add_peers(workload, per_rank, contestants); !status) return status;
  const Board::Form form{series_count(contestants), bench_case.iterations, 0};
  {
    BoardMemory memory;
    if (Status status = memory.allocate(form.bytes(), bench_case.ranks); !status) return status;
    // A rank that dies takes the whole MPI job with it, so nobody need be asked.
    Board board(memory.pieces, rank, form, options.settings.watchdog_s, nullptr);
    exit_status = run_contestants(board, workload, contestants, options.settings, progress);
    if (exit_status == kExitFailed) return {};
  }
  contestants.clear();
  return world ? world->leave(std::chrono::seconds(10)) : Status();
}

int start(int argc, char** argv) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CLI::App app("Sluice and its MPI peer in one run; started by sluice bench --peer mpi");
  BenchOptions options;
  options.add_to(app);
  app.add_flag("--peer-alone", options.settings.peer_alone, "Measure the peer only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return rank == 0 && app.exit(error) == 0 ? kExitOk : kExitFailed;
  }
  Status status = options.finish(app, argc, argv);
  if (status.ok() && options.bench_case.ranks != size) {
    status =
        Status(StatusCode::invalid_argument,
               fmt::format("--ranks is {}, but mpirun started {}", options.bench_case.ranks, size));
  }
  if (!status) return rank == 0 ? complain(status, -1) : kExitFailed;
  int exit_status = kExitOk;
  status = run(options, rank, exit_status);
  return status.ok() ? exit_status : complain(status, rank);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int exit_status = sluice::bench::kExitFailed;
  try {
    exit_status = sluice::bench::start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-bench-mpi: %s\n", error.what());
  }
  std::fflush(nullptr);
  // A rank that failed alone would leave the others waiting in a collective call.
  if (exit_status == sluice::bench::kExitFailed) MPI_Abort(MPI_COMM_WORLD, exit_status);
  MPI_Finalize();
  return exit_status;
}
